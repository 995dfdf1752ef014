"""What a distribution in a YAML file must and may name: one check for lengths and for times."""

from collections.abc import Sequence

from prony_loadgen.strict_yaml import StrictModel


def check_keys(model: StrictModel, distribution: str, needs: Sequence[str]) -> None:
    """Raises ValueError for keys that it needs and lacks, or has and does not take.

    Beside `needs` every distribution takes `min` and `max`.
    """
    given = {key for key in model.model_fields_set if getattr(model, key) is not None}
    missing = [key for key in needs if getattr(model, key) is None]
    if missing:
        raise ValueError(f"{distribution} needs {' and '.join(missing)}")
    extra = sorted(given - {"distribution", "min", "max", *needs})
    if extra:
        raise ValueError(
            f"{distribution} does not take {' and '.join(extra)}; "
            f"it takes {', '.join(dict.fromkeys((*needs, 'min', 'max')))}"
        )
