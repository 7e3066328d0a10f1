"""The output of a run: JSONL rows, the marks of rows already done, the run's manifest."""

from vlbatch.sink.sink import Sink

__all__ = ["Sink"]
