"""Every exception that Onward raises, drawn as a tree.

OnwardError
├── ModelError (ValueError)          the model itself is at fault
│   ├── InvalidModel                 it does not parse, or breaks ONNX's rules
│   ├── UnsafeModel                  it reaches outside its folder or over a limit
│   │   ├── LimitExceeded            ... over one of ModelLimits
│   │   └── SignatureInvalid         ... or it is not what was signed
│   ├── UnsupportedModel             no listed provider can run one of its nodes
│   └── MissingGradient              no rule differentiates one of its nodes
├── FeedError (ValueError)           a feed has a wrong name, type or shape
├── WeightsError (ValueError)        weights that do not fit the model
├── CheckpointError (ValueError)     a checkpoint cannot be saved or read
│   ├── CheckpointCorrupt            ... because its file is damaged
│   ├── CheckpointMissing (FileMissing)  ... because there is no such file
│   ├── CheckpointMismatch           ... because it is of another model
│   └── CheckpointNominal (RuntimeError)  ... because it has names alone, no data
├── FileMissing (FileNotFoundError)  a file that was named is not there
├── WriteFailed (OSError)            a file cannot be written where it was asked for
│   └── FileExists (FileExistsError)  ... because there is one that must not be lost
├── OptionError (ValueError)         a setting that does not exist or cannot hold
│   ├── OptionAttributeError (AttributeError)  ... because none has that name, or it is fixed
│   ├── OptionTypeError (TypeError)  ... because the object is of another class
│   └── EntryMissing (RuntimeError)  ... because the configuration entry was not set
├── ProviderError (RuntimeError)     a provider failed
│   ├── ProviderMissing              ... because it is not installed here
│   ├── NodeFailed                   ... while it ran one operator
│   ├── DeadlineExceeded (TimeoutError)  it took longer than it was allowed
│   └── WorkerDied                   ... with the process that ran it
├── SessionClosed (ValueError)       a session was used after its close()
└── MemoryLimitExceeded (MemoryError)
"""

from __future__ import annotations


class OnwardError(Exception):
    """The root: `except OnwardError` catches everything that Onward raises on purpose."""


class ModelError(OnwardError, ValueError):
    """The model itself is at fault."""


class InvalidModel(ModelError):
    """The model does not parse, or it breaks ONNX's rules."""


class UnsafeModel(ModelError):
    """The model reaches outside its folder, or over a limit."""


class LimitExceeded(UnsafeModel):
    """The model asks for more than ModelLimits allow."""


class SignatureInvalid(UnsafeModel):
    """The model, or a file that belongs to it, is not what was signed."""


class UnsupportedModel(ModelError):
    """No listed provider can run one of the model's nodes."""


class MissingGradient(ModelError):
    """A gradient was asked for that no rule gives."""


class FeedError(OnwardError, ValueError):
    """A feed has a wrong name, type or shape."""


class WeightsError(OnwardError, ValueError):
    """The weights do not fit the model."""


class FileMissing(OnwardError, FileNotFoundError):
    """A file that was named is not there; the message says what is."""


class WriteFailed(OnwardError, OSError):
    """A file cannot be written where it was asked for; nothing that was there has changed."""


class FileExists(WriteFailed, FileExistsError):
    """A file is not written, because there is one of that name that must not be lost."""


class CheckpointError(OnwardError, ValueError):
    """A checkpoint cannot be saved or read."""


class CheckpointCorrupt(CheckpointError):
    """A checkpoint's file is damaged; the message names what of it."""


class CheckpointMissing(CheckpointError, FileMissing):
    """There is no checkpoint of that name."""


class CheckpointMismatch(CheckpointError):
    """A checkpoint is of another model: tensors differ in name, type or shape."""


class CheckpointNominal(CheckpointError, RuntimeError):
    """A checkpoint has the names of parameters without their data, which were asked for."""


class OptionError(OnwardError, ValueError):
    """A setting does not exist, or cannot hold here."""


class OptionAttributeError(OptionError, AttributeError):
    """Options have no attribute of this name, or none that can be set."""


class OptionTypeError(OptionError, TypeError):
    """Options were given as an object of another class."""


class EntryMissing(OptionError, RuntimeError):
    """A configuration entry was read that is not set."""


class ProviderError(OnwardError, RuntimeError):
    """A provider failed."""


class ProviderMissing(ProviderError):
    """A provider is not installed on this machine."""


class NodeFailed(ProviderError):
    """A provider failed while it ran one operator, which it had said it could."""

    def __init__(self, message: str, op_type: str) -> None:
        super().__init__(message)
        self.op_type = op_type


class DeadlineExceeded(ProviderError, TimeoutError):
    """A run, or the opening of an isolated model, took longer than it was allowed."""


class SessionClosed(OnwardError, ValueError):
    """A session was used after its `close()`."""


class WorkerDied(ProviderError):
    """The process that held an isolated session crashed."""


class MemoryLimitExceeded(OnwardError, MemoryError):
    """A session would need more memory than its limit."""
