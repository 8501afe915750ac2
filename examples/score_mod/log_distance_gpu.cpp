// The score for OpenMP target regions on a GPU.
#include "log_distance.hpp"

#include <flashomp/score_mod_gpu.hpp>

FLASHOMP_SCORE_MOD_GPU_CODE(LogDistance)
