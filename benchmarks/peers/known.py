"""What peers reached on one H200 (driver 580.159, CUDA 13.0, cuDNN 9.19) on 2026-11-29, TFLOP/s,
for those that a run cannot have. Medians of 30; the card's clocks moved these by 5-8% between runs.
"""

DATE = "2026-11-29"

# case -> impl -> (forward, backward)
TFLOPS = {
    "b4h16n4096": {"fa3 bf16": (727, 571), "cudnn bf16": (677, 565), "fa3 fp8": (915, None),
                   "cudnn fp8": (973, 663), "torch bf16": (332, 301)},
    "b2h16n8192": {"fa3 bf16": (737, 581), "cudnn bf16": (684, 544), "fa3 fp8": (985, None),
                   "cudnn fp8": (1005, 668), "torch bf16": (340, 308)},
    "b1h16n16384": {"fa3 bf16": (680, 597), "cudnn bf16": (644, 537), "fa3 fp8": (923, None),
                    "cudnn fp8": (976, 678), "torch bf16": (346, 313)},
    "b1h16n16384 causal": {"fa3 bf16": (747, 588), "cudnn bf16": (633, 551),
                           "fa3 fp8": (968, None), "cudnn fp8": (904, 660)},
    "b96h3q512 k equal 16384": {"fa3 bf16": (707, 468), "cudnn bf16": (647, 471),
                                "fa3 fp8": (961, None), "cudnn fp8": (924, 622),
                                "torch bf16": (323, 290)},
    "b768h3q512 k uniform 4096": {"fa3 bf16": (556, 414), "fa3 fp8": (834, None),
                                  "torch bf16": (340, 257)},
    "b768h3q512 k uniform 8192": {"fa3 bf16": (588, 436), "fa3 fp8": (814, None),
                                  "torch bf16": (323, 269)},
    "b768h3q512 k uniform 16384": {"fa3 bf16": (607, 446), "fa3 fp8": (848, None),
                                   "torch bf16": (322, 280)},
    "b256h3q512 k uniform 16384": {"cudnn bf16": (554, 433), "cudnn fp8": (811, 294)},
}


def tflops(case_name, impl, backward):
    """None where it was not measured."""
    return TFLOPS.get(case_name, {}).get(impl, (None, None))[1 if backward else 0]
