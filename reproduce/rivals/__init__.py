"""Rivals of DiffusionNER: one of each family that the paper compares it with.

Each is a `Network` and an `Objective` like the main method, with the same encoder, reader, trainer,
calibration and scorer. Importing this package registers them.
"""

from diffusionner.methods import Method, register

for _name, _prefix, _options in (
    ("crf", "Tagging", ("levels",)),
    ("biaffine", "Biaffine", ()),
    ("queries", "Query", ()),
    ("autoregressive", "Generating", ()),
):
    _module = f"reproduce.rivals.{_name}"
    register(
        _name,
        Method(
            network=f"{_module}:{_prefix}Network",
            objective=f"{_module}:{_prefix}Objective",
            recorded="reproduce.rivals.recorded:RecordedRival",
            options=_options,
        ),
    )
