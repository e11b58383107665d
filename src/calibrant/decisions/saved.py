"""What rules and shortlists share: each travels as a small JSON file that carries a digest of its content."""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from calibrant.errors import invalid
from calibrant.files import check_format, read_json, typed, write_with_digest


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A dataclass of plain values that can be saved and loaded.

    Attributes:
        verified: False where it was read from a file without a digest, as 0.1.0 wrote them: nobody can tell whether
            such a file was changed.
    """

    _what: ClassVar[str]
    _format: ClassVar[str]
    _version: ClassVar[int] = 1
    _newer: ClassVar[tuple[str, ...]] = ()  # fields that files of 0.1.0 do not have
    _optional: ClassVar[tuple[str, ...]] = ()  # fields that are left out of files where they are None

    verified: bool = field(default=True, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Everything that `load` needs, as plain JSON values."""
        content = {"format": self._format, "version": self._version, **asdict(self)}
        del content["verified"]
        return {name: value for name, value in content.items() if value is not None or name not in self._optional}

    @classmethod
    def from_dict(cls, content: Any, *, where: str = "content") -> Self:
        """Build one from what `to_dict` gave, or from the content of a file."""
        members, verified = check_format(content, what=cls._what, name=cls._format, version=cls._version, where=where)
        members["verified"] = verified
        for each in fields(cls):
            if each.name not in (*members, *cls._newer, *cls._optional):
                raise invalid(where, f"be an undamaged {cls._what}", f"one without {each.name}")
        return typed(cls, members, what=cls._what, where=where)

    def save(self, path: str | Path) -> None:
        """Write as JSON with a digest."""
        write_with_digest(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote; a file that was changed or breaks a rule of this class is refused."""
        return cls.from_dict(read_json(path), where=str(path))
