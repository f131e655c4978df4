"""Class names as a person would say them, for models of language."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LEADING_NUMBER = re.compile(r"^\d+[\s._-]+")
_SEPARATORS = re.compile(r"[\s_]+")
_NAMELESS = {"sop", "inshop", "shapes", "textures"}


def spoken_class_names(data_set_name: str, class_names: Sequence[str]) -> list[str]:
    """The names of classes without numbers, underscores and codes, in the same order.

    Args:
        data_set_name: As in :func:`nearkin.data.names`; a data set that is not known is cleaned like
            ``folder``.
        class_names: The class names of an :class:`~nearkin.data.SampleSet` of that data set.

    Raises:
        ValueError: The data set has no class names, or a class has a number only.

    >>> spoken_class_names("cub200", ["001.Black_footed_Albatross"])
    ['Black footed Albatross']
    >>> spoken_class_names("glyphs", ["U+0041 A latin capital letter a"])
    ['latin capital letter a']
    """
    if data_set_name in _NAMELESS:
        raise ValueError(f"{data_set_name} numbers its classes and has no names for them: use pseudo-labels")
    if data_set_name == "glyphs":
        names = [name.split(" ", 2)[-1] for name in class_names]  # after the code and the character itself
    else:
        names = [_SEPARATORS.sub(" ", name).strip() for name in _without_numbering(class_names)]
    for before, after in zip(class_names, names, strict=True):
        if not any(character.isalpha() for character in after):
            raise ValueError(
                f"class {before!r} of {data_set_name} has no name that could be spoken: use pseudo-labels"
            )
    return names


def _without_numbering(class_names: Sequence[str]) -> Sequence[str]:
    """Names without the numbers they begin with, if all of them do: ``747 Jumbo`` alone keeps its own."""
    if all(_LEADING_NUMBER.match(name) for name in class_names):
        return [_LEADING_NUMBER.sub("", name) for name in class_names]
    return class_names
