"""The output of a run: JSONL rows, the marks of rows already done, the run's manifest."""

from vlbatch.sink.sink import STDOUT, Sink, what_is_there

__all__ = ["STDOUT", "Sink", "what_is_there"]
