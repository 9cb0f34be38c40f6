"""The exceptions of Onward, drawn as a tree.

OnwardError
├── ModelError (ValueError)          the model is wrong
│   ├── InvalidModel                 it does not parse, or breaks ONNX's rules
│   ├── UnsafeModel                  it reaches outside its folder or exceeds a limit
│   │   ├── LimitExceeded            ... one of ModelLimits
│   │   └── SignatureInvalid         ... or it differs from what was signed
│   ├── UnsupportedModel             no listed provider can run one of its nodes
│   └── MissingGradient              no rule differentiates one of its nodes
├── FeedError (ValueError)           a feed has a wrong name, type or shape
├── DataError (ValueError)           training data that cannot be read, or a row of it is wrong
│   └── ColumnMissing                ... because it has no column of this name
├── PackageMissing (ImportError)     a package that this needs is not installed
├── WeightsError (ValueError)        weights that do not fit the model
├── MetricError (ValueError)         outputs and targets that a metric cannot compare
├── CheckpointError (ValueError)     a checkpoint cannot be saved or read
│   ├── CheckpointCorrupt            ... because its file is damaged
│   ├── CheckpointMissing (FileMissing)  ... because there is no such file
│   ├── CheckpointMismatch           ... because it belongs to another model
│   └── CheckpointNominal (RuntimeError)  ... because it has names without data
├── GradientUnsupported (RuntimeError)  a gradient that an optimizer cannot use
├── TypeUnsupported (RuntimeError)   a data type without a counterpart in ONNX or torch
├── NotFinite (ArithmeticError)      training whose numbers are infinite or not a number
├── FileMissing (FileNotFoundError)  a file does not exist
├── WriteFailed (OSError)            a file cannot be written
│   └── FileExists (FileExistsError)  ... because it exists and must not be overwritten
├── OptionError (ValueError)         a setting that does not exist or is not valid
│   ├── OptionAttributeError (AttributeError)  ... no such attribute, or it is read-only
│   ├── OptionTypeError (TypeError)  ... because it has the wrong type
│   └── EntryMissing (RuntimeError)  ... because the configuration entry was not set
├── ProviderError (RuntimeError)     a provider failed
│   ├── ProviderMissing              ... because it is not installed here
│   ├── NodeFailed                   ... while it ran one operator
│   ├── DeadlineExceeded (TimeoutError)  ... because its deadline passed
│   └── WorkerDied                   ... because its process crashed
├── DistributedError (RuntimeError)  training on many processes failed
│   ├── PeerLost (ConnectionError)   ... because another process of the run is gone
│   ├── PeerFailed                   ... because another process failed, which says why
│   └── RunFenced                    ... because other processes took the run over
├── SessionClosed (ValueError)       a session was used after its close()
├── ServingError (RuntimeError)      a request that a server did not answer with outputs
│   ├── RequestInvalid (ValueError)  ... because it is malformed or does not fit the model
│   ├── RequestTooLarge              ... because it has more bytes than the server takes
│   ├── ModelNotFound (LookupError)  ... because there is no such model or version
│   ├── ModelUnavailable             ... because the model is not ready
│   ├── ServerOverloaded             ... because too many requests wait
│   ├── QuotaExceeded                ... because this client sent too many
│   ├── AccessDenied (PermissionError)  ... because its key is missing or wrong
│   ├── RequestExpired (TimeoutError)  ... because its deadline passed before it ran
│   ├── ServerUnreachable (ConnectionError)  ... because no connection to it could be made or kept
│   └── NotSupported                 ... because the server has no such feature
├── SweepFailed (RuntimeError)       no trial of a sweep finished
└── MemoryLimitExceeded (MemoryError)
"""

from __future__ import annotations


class OnwardError(Exception):
    """The root: `except OnwardError` catches everything that Onward raises on purpose."""


class ModelError(OnwardError, ValueError):
    """The model is wrong."""


class InvalidModel(ModelError):
    """The model does not parse, or it breaks ONNX's rules."""


class UnsafeModel(ModelError):
    """The model reaches outside its folder, or exceeds a limit."""


class LimitExceeded(UnsafeModel):
    """The model exceeds one of ModelLimits."""


class SignatureInvalid(UnsafeModel):
    """The model, or one of its files, differs from what was signed."""


class UnsupportedModel(ModelError):
    """No listed provider can run one of the model's nodes."""


class MissingGradient(ModelError):
    """No gradient rule differentiates one of the model's nodes."""


class FeedError(OnwardError, ValueError):
    """A feed has a wrong name, type or shape."""


class DataError(OnwardError, ValueError):
    """Training data cannot be read, or a row of it is wrong; the message names the place."""


class ColumnMissing(DataError):
    """Training data has no column of this name; the message lists similar ones."""


class PackageMissing(OnwardError, ImportError):
    """An optional package is not installed; the message has the command that installs it."""


class WeightsError(OnwardError, ValueError):
    """The weights do not fit the model."""


class MetricError(OnwardError, ValueError):
    """A metric cannot compare these outputs with these targets."""


class GradientUnsupported(OnwardError, RuntimeError):
    """An optimizer cannot use a gradient: it is sparse."""


class TypeUnsupported(OnwardError, RuntimeError):
    """A data type has no counterpart in ONNX or in torch."""


class NotFinite(OnwardError, ArithmeticError):
    """Training met numbers that are infinite or not a number; the message names the first node."""


class FileMissing(OnwardError, FileNotFoundError):
    """A file does not exist; the message lists similar ones."""


class WriteFailed(OnwardError, OSError):
    """A file cannot be written; existing files have not changed."""


class FileExists(WriteFailed, FileExistsError):
    """A file is not written, because it exists and must not be overwritten."""


class CheckpointError(OnwardError, ValueError):
    """A checkpoint cannot be saved or read."""


class CheckpointCorrupt(CheckpointError):
    """A checkpoint's file is damaged; the message names the part."""


class CheckpointMissing(CheckpointError, FileMissing):
    """A checkpoint does not exist."""


class CheckpointMismatch(CheckpointError):
    """A checkpoint belongs to another model: tensors differ in name, type or shape."""


class CheckpointNominal(CheckpointError, RuntimeError):
    """A checkpoint has the names of parameters without their data."""


class OptionError(OnwardError, ValueError):
    """A setting does not exist, or is not valid here."""


class OptionAttributeError(OptionError, AttributeError):
    """Options have no attribute of this name, or it is read-only."""


class OptionTypeError(OptionError, TypeError):
    """Options are an object of the wrong type."""


class EntryMissing(OptionError, RuntimeError):
    """A configuration entry is not set."""


class ProviderError(OnwardError, RuntimeError):
    """A provider failed."""


class ProviderMissing(ProviderError):
    """A provider is not installed on this machine."""


class NodeFailed(ProviderError):
    """A provider failed while it ran one operator that it claims to support."""

    def __init__(self, message: str, op_type: str) -> None:
        super().__init__(message)
        self.op_type = op_type


class DeadlineExceeded(ProviderError, TimeoutError):
    """A run, or the opening of an isolated model, passed its deadline."""


class DistributedError(OnwardError, RuntimeError):
    """Training on many processes failed."""


class PeerLost(DistributedError, ConnectionError):
    """Another process of a training run is gone, or did not answer in time."""


class PeerFailed(DistributedError):
    """Another process of the run failed, and reports its error; this one ends with it."""


class RunFenced(DistributedError):
    """Other processes took a training run over: this one must not write to it any more."""


class SessionClosed(OnwardError, ValueError):
    """A session was used after its `close()`."""


class WorkerDied(ProviderError):
    """The process that held an isolated session crashed."""


class SweepFailed(OnwardError, RuntimeError):
    """No trial of a sweep finished, or the first ones failed with the same error."""


class MemoryLimitExceeded(OnwardError, MemoryError):
    """A session would need more memory than its limit."""


class ServingError(OnwardError, RuntimeError):
    """A request that a server did not answer with outputs.

    `status` is HTTP's, `grpc_code` the name of gRPC's. `retry_after`: seconds to wait, if it helps.
    """

    status = 500
    grpc_code = "INTERNAL"

    def __init__(self, text: str, *, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class RequestInvalid(ServingError, ValueError):
    """A request is malformed, or does not fit the model."""

    status, grpc_code = 400, "INVALID_ARGUMENT"


class RequestTooLarge(ServingError):
    """A request has more bytes than the server takes."""

    status, grpc_code = 413, "RESOURCE_EXHAUSTED"


class ModelNotFound(ServingError, LookupError):
    """A server has no such model or version."""

    status, grpc_code = 404, "NOT_FOUND"


class ModelUnavailable(ServingError):
    """A model is not ready: it is being loaded, was unloaded, or its process died."""

    status, grpc_code = 503, "UNAVAILABLE"


class ServerOverloaded(ServingError):
    """Too many requests wait."""

    status, grpc_code = 503, "UNAVAILABLE"


class QuotaExceeded(ServingError):
    """A client sent more requests than its key allows."""

    status, grpc_code = 429, "RESOURCE_EXHAUSTED"


class AccessDenied(ServingError, PermissionError):
    """A key is missing or wrong."""

    status, grpc_code = 401, "UNAUTHENTICATED"


class RequestExpired(ServingError, TimeoutError):
    """The deadline of a request passed before its run ended."""

    status, grpc_code = 503, "DEADLINE_EXCEEDED"


class NotSupported(ServingError):
    """A server has no such feature."""

    status, grpc_code = 501, "UNIMPLEMENTED"


class ServerUnreachable(ServingError, ConnectionError):
    """A client could not connect to a server, or lost the connection."""

    status, grpc_code = 503, "UNAVAILABLE"
