"""`python -m benchmarks work`"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from diffusionner.cli.options import Model

PROSE = (
    "The president of the Bank of England met Angela Merkel in New York on Monday. Shares rose "
    "by three percent after she had said that the talks would go on in London until the end of "
    "the year. No one from the University of California was there. "
)
# Name, text and options.
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("one tiny sentence", "Ada.", {}),
    ("8 tiny sentences", "No! " * 8, {}),
    ("100 tiny sentences", "No! " * 100, {}),
    ("3 sentences", PROSE, {}),
    ("30 sentences", PROSE * 10, {}),
    ("45 words", "the shares rose in london and " * 7 + "paris.", {}),
    ("600 words, one sentence", "the shares rose in london and " * 100, {}),
    ("100 times Paris", "Paris " * 100, {}),
    ("2,000 exclamation marks", "!" * 2_000, {}),
    ("a word of 2,000 letters", "xqzvk" * 400, {}),
    ("list of 60 names", "Angela Merkel, " * 60, {}),
    *((f"3 sentences, {steps} steps", PROSE, {"steps": steps}) for steps in (2, 5, 10, 50)),
    *((f"3 sentences, {spans} spans", PROSE, {"spans": spans}) for spans in (1, 50, 150, 500)),
    ("3 sentences, auto spans, 10 steps", PROSE, {"spans": "auto", "steps": 10}),
    ("8 tiny sentences, 10 × 100", "No! " * 8, {"steps": 10, "spans": 100}),
    ("one tiny sentence, 20 × 500", "No!", {"steps": 20, "spans": 500}),
]


def service_work(model: Model = "en") -> None:
    """Compare the service's estimates of work with CPU time, on one thread.

    A ratio is milliseconds of CPU time per unit of work; the last column compares it with the
    median of all cases.
    """
    import torch

    from diffusionner import DiffusionNER
    from diffusionner.service.work import WorkEstimate
    from diffusionner.service.worker import Predictor
    from diffusionner.text import split_sentences

    torch.set_num_threads(1)
    ner = DiffusionNER.from_pretrained(model, "cpu")
    word_limits = Predictor(ner).info().word_limits
    rows = []
    for name, text, options in CASES:
        estimate = WorkEstimate(ner.settings, options, word_limits)
        sentences = split_sentences(text)
        batches = sum(math.ceil(estimate.windows(s.words)) for s in sentences) / 32
        work = math.ceil(batches) * estimate.batch + sum(estimate.of_sentences(sentences))
        ner(text, **options)
        seconds = []
        for _ in range(3):
            began = time.process_time()
            ner(text, **options)
            seconds.append(time.process_time() - began)
        rows.append((name, work, 1000 * min(seconds)))
    middle = float(np.median([measured / work for _, work, measured in rows]))
    print(f"{'':>34} {'work':>8} {'CPU ms':>8} {'ratio':>6} {'to median':>9}")
    for name, work, measured in rows:
        ratio = measured / work
        print(f"{name:>34} {work:8.0f} {measured:8.0f} {ratio:6.2f} {ratio / middle:9.2f}")
