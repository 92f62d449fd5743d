"""Where each value of a scenario was given: `file:line:col`, or the `--set` that gave it."""

from __future__ import annotations

from dataclasses import dataclass, field

Path = tuple[str | int, ...]


@dataclass(slots=True, eq=False)
class Places:
    """Maps the path of a value, such as `("engine", "block_size")`, to the place it was written."""

    by_path: dict[Path, str] = field(default_factory=dict)

    def where(self, path: Path) -> str | None:
        """The place of `path`, or of the nearest section around it; None for a scenario made in code."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.by_path:
                return self.by_path[path[:length]]
        return None

    def replace(self, path: Path, place: str) -> None:
        """Say that `path` and all below it now come from `place`."""
        self.by_path = {known: at for known, at in self.by_path.items() if known[: len(path)] != path}
        self.by_path[path] = place

    def __eq__(self, other: object) -> bool:
        """Always equal to other places: two scenarios are the same wherever their values were written."""
        return isinstance(other, Places)

    __hash__ = None  # type: ignore[assignment]
