"""The table of transforms: a name and what makes a :class:`~nearkin.data.Transform` of it.

An entry takes ``(preprocessing, train, **keywords)``: the network's
:class:`~nearkin.data.Preprocessing` (``None`` for a network without one), and whether it is for training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearkin.registry import Registry

if TYPE_CHECKING:
    from nearkin.data.transforms import Transform

registry: Registry[Transform] = Registry("transform")
