"""The exceptions of vlbatch, and the exit code that the command line gives each.

    VlbatchError (1)            the run failed
    ├── UsageError (2)          the user's mistake: an option, an input, a config key, a model name
    │   └── ResumeRefused (2)   the output holds rows of another run
    ├── OutputError (1)         the output can't be written: disk full, folder gone, I/O error
    ├── ModelError (1)          the model or its device failed while it ran
    └── Interrupted (130)       stopped by a signal; the same command goes on

A bad image is never an exception: it is a `records.Failure`, and one row of the output.
"""

from __future__ import annotations


class VlbatchError(Exception):
    """Base of all that vlbatch raises on purpose; its text is written for the reader."""

    exit_code = 1


class UsageError(VlbatchError, ValueError):
    """A value that the user gave can't be used. The text names it, what is allowed, what to do."""

    exit_code = 2


class ResumeRefused(UsageError):
    """The output belongs to a run with other settings or inputs; the text names the difference."""


class OutputError(VlbatchError):
    """Writing rows failed; what was written before is intact."""


class ModelError(VlbatchError):
    """The model or its device failed in a way that no single row is to blame for."""


class Interrupted(VlbatchError):
    """The run was stopped by a signal; rows written are safe and the same command goes on."""

    exit_code = 130
