// Scores that a program might have, compiled in a library of their own.
#pragma once

#include "flashomp/options.hpp"

namespace flashomp::testing {

/// ALiBi by hand: s - slopes[head]·|query + Nk - Nq - key|.
ScoreMod distance(const float* slopes);

/// Softcap by hand: c·tanh(s/c), whose slope is 1 - tanh².
ScoreMod cap(float c);

/// A mask alone, on hosts alone: keys of the query's document, and not after the query; documents[batch·seqlen + i] of
/// query and key i.
ScoreMod documents(const int* documents);

/// All of it at once: s + a·s², a cap of its own for each head, and a mask with holes.
ScoreMod everything(float a);

} // namespace flashomp::testing
