"""Rivals of DiffusionNER, one of each family that the paper compares it with.

Each has the same encoder, reader, trainer, calibration and scorer, and is a `Network` and an
`Objective` like the main method: tagging, span classification, a set of learned queries, and
autoregressive generation.
"""

from diffusionner.methods import Method, register

for _name, _network, _objective in (
    ("crf", "TaggingNetwork", "TaggingObjective"),
    ("biaffine", "BiaffineNetwork", "BiaffineObjective"),
    ("queries", "QueryNetwork", "QueryObjective"),
    ("autoregressive", "GeneratingNetwork", "GeneratingObjective"),
):
    _module = f"reproduce.rivals.{_name}"
    register(
        _name,
        Method(
            network=f"{_module}:{_network}",
            objective=f"{_module}:{_objective}",
            recorded="reproduce.rivals.recorded:RecordedRival",
            options=("levels",) if _name == "crf" else (),
        ),
    )
