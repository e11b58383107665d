"""What rules and shortlists share: they are parts of a `Policy` and travel as plain JSON values."""

from dataclasses import asdict, fields
from typing import Any, ClassVar, Self

from calibrant.errors import invalid
from calibrant.files import typed


class Part:
    """A dataclass of plain values that a policy file contains."""

    _what: ClassVar[str]
    _optional: ClassVar[tuple[str, ...]] = ()  # fields that are left out if they are None

    def to_dict(self) -> dict[str, Any]:
        """Everything that `from_dict` needs, as plain JSON values."""
        content = asdict(self)  # type: ignore[call-overload]  # every subclass is a dataclass
        return {name: value for name, value in content.items() if value is not None or name not in self._optional}

    @classmethod
    def from_dict(cls, content: Any, *, where: str = "content") -> Self:
        """Build one from what `to_dict` returned. Content that breaks a rule of this class is refused.

        Args:
            content: Plain JSON values.
            where: The file, for messages.
        """
        if not isinstance(content, dict):
            raise invalid(where, f"be an undamaged {cls._what}", type(content).__name__)
        for each in fields(cls):  # type: ignore[arg-type]
            if each.name not in (*content, *cls._optional):
                raise invalid(where, f"be an undamaged {cls._what}", f"one without {each.name}")
        return typed(cls, content, what=cls._what, where=where)
