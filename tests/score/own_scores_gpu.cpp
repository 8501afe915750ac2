#include "formula.hpp"

#include "flashomp/score_mod_gpu.hpp"

FLASHOMP_SCORE_MOD_GPU_CODE(flashomp::testing::Formula)
