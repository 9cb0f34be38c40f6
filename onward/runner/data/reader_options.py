"""ReaderOptions: the settings of readers, and which reader takes which."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from onward import settings
from onward.errors import OptionError
from onward.message_text import list_names
from onward.runner.data.text_files import Vocabulary


@dataclass(frozen=True, kw_only=True)
class ReaderOptions:
    """The settings of `open_data` that one kind of source takes; None: the reader's default."""

    columns: Sequence[str] | None = None  # every reader takes it
    types: Mapping[str, str] | None = None
    delimiter: str | None = None
    header: bool | None = None
    image_size: tuple[int, int] | None = None
    channels: int | None = None
    skip_broken: bool | None = None
    block: int | None = None
    tokenize: Callable[[str], Iterable[int]] | None = None
    vocabulary: Vocabulary | None = None

    def __post_init__(self) -> None:
        length = settings.integer(1)
        settings.check_fields(
            self,
            columns=settings.optional(settings.listed),
            delimiter=settings.optional(settings.nonempty_name),
            header=settings.optional(settings.true_or_false),
            image_size=settings.optional(settings.several(length, "(height, width)", 2)),
            skip_broken=settings.optional(settings.true_or_false),
            block=settings.optional(length),
        )
        if self.channels not in (None, 1, 3, 4):
            raise settings.setting_error("ReaderOptions.channels", "1, 3 or 4", self.channels)
        if self.block is None and (self.tokenize or self.vocabulary):
            raise OptionError("tokenize and vocabulary need block: the number of tokens in a row")

    @property
    def image_shape(self) -> tuple[int | None, ...]:
        """(channels, height, width) of images in columns."""
        return (self.channels or 3, *(self.image_size or (None, None)))

    def only(self, source: object, *taken: str) -> None:
        """Refuse settings that this source does not take."""
        for name, value in vars(self).items():
            if value is not None and name not in (*taken, "columns"):
                hint = f"it takes {list_names(taken)}" if taken else "it takes none"
                raise OptionError(f"{source} is not read with a setting {name!r}\n{hint}")
