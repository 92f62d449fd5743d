"""Names that the cost models must know: of models, GPUs, weight types and engine releases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator

import cost_models


def _known(look_up: Callable[[str], object], *also: str) -> AfterValidator:
    """Refuses a name at which `look_up` fails, with its list of the nearest ones; `also` needs no look-up."""

    def check(name: str) -> str:
        if name not in also:
            look_up(name)  # its errors are ValueErrors, as pydantic wants them
        return name

    return AfterValidator(check)


ModelName = Annotated[str, _known(cost_models.model)]
GpuName = Annotated[str, _known(cost_models.gpu)]
WeightDtypeName = Annotated[str, _known(cost_models.weight_dtype, "auto")]
