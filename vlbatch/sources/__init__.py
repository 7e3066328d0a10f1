"""What the user names as INPUT, as a stream of refs: folders, globs, files, lists, URLs, stdin.

inputs.py   INPUT → source; `Inputs`, the stream over all of them
kinds.py    one source for each kind of INPUT
keys.py     unique keys
scan.py     folders and globs, one folder's names at a time
lists.py    txt, csv, tsv and jsonl files and streams, one row at a time
hints.py    what to say of an INPUT that can't be used
"""

from vlbatch.sources.inputs import Inputs, SourceOptions, open_inputs
from vlbatch.sources.scan import IMAGE_SUFFIXES

__all__ = ["IMAGE_SUFFIXES", "Inputs", "SourceOptions", "open_inputs"]
