"""Every error that specsim raises on purpose.

Each message names the file and line or the field, the value, the rule and what to do, in one line.
The command line prints it and exits with code 2.
"""


class SpecsimError(Exception):
    """Base of every error that specsim raises on purpose."""


class ConfigError(SpecsimError, ValueError):
    """A field of an experiment is unknown, unused, missing or out of range."""


class TraceError(SpecsimError, ValueError):
    """A workload file cannot be read as what it claims to be."""


class UnknownFormatError(TraceError):
    """A workload file holds rows, of a form that no reader knows."""


class ProfileError(SpecsimError, ValueError):
    """A profile is missing, malformed, or made for another model."""


class NotMeasuredError(ProfileError):
    """A table of kernels has no row with the value that is needed of one of its columns."""

    def __init__(self, message: str, column: str = "") -> None:
        super().__init__(message)
        self.column = column


class CapacityError(SpecsimError, ValueError):
    """A request, or a model, can never fit the memory it is given."""


class PluginError(SpecsimError, ValueError):
    """A policy, or another class of the user's, raised an exception or broke its contract."""


class CrashError(SpecsimError):
    """A run of a study ended by a bug, or its process was killed."""


class InvariantError(SpecsimError):
    """The simulator contradicted itself; the message holds the equation that failed."""
