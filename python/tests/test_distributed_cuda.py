"""flashomp.torch.distributed over NCCL, a GPU for each rank: the cases of test_distributed.py.

Needs two GPUs; tools/gpu_python runs these tests on a machine that has them.
"""

import flashomp  # noqa: F401, I001  first: see test_cuda.py
import pytest

torch = pytest.importorskip("torch")
if torch.cuda.device_count() < 2:
    pytest.skip("PyTorch finds fewer than two GPUs", allow_module_level=True)
import test_distributed as cases  # noqa: E402
from ranks import Ranks  # noqa: E402


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    pool = Ranks(min(4, torch.cuda.device_count()), tmp_path_factory.mktemp("ranks") / "store", "nccl")
    pool(pool.world, cases.first_call)
    yield pool
    pool.close()


SCHEMES = [name for name in cases.SCHEMES if "grid" not in name or torch.cuda.device_count() != 3]


@pytest.mark.parametrize("name", ["plain", "causal", "top left", "window", "narrow", "alibi", "bias", "bias of rows",
                                  "bias of keys", "padding", "mask", "mask of keys"])
def test_every_option(ranks, name):
    ranks(ranks.world, cases.agrees, name, SCHEMES, 61, 83, 2)


def test_dropout_draws_the_mask_of_one_process(ranks):
    ranks(ranks.world, cases.agrees, "dropout", ["ring", "zigzag", "gather", "zigzag gather"], 61, 83, 2)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_rounded_once(ranks, dtype, scheme):
    ranks(ranks.world, cases.sixteen_bits, dtype, scheme, 4.0)


@pytest.mark.parametrize("local", [False, True], ids=["whole", "local"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_packed_sequences(ranks, scheme, local):
    ranks(ranks.world, cases.packed, scheme, local, False)


def test_random_cases(ranks):
    for seed in range(12):
        ranks(ranks.world, cases.random_case, 5000 + 10 * seed)


def test_ring_flash_attention_s_functions(ranks):
    ranks(ranks.world, cases.same_as_flash_attn)
