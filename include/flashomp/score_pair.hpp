// What a program's own score is asked (score_mod.hpp).
#pragma once

namespace flashomp {

/// One pair of a query and a key. All numbers count from 0; query and key from the start of their sequence. Of a part
/// of a larger call (attention.hpp, "Shards") they are those of the whole.
struct ScorePair {
    int batch = 0; ///< from Options::first_sequence on
    int head = 0;  ///< of the queries, from Options::first_head on
    int query = 0;
    int key = 0;
    int seqlen_q = 0, seqlen_k = 0; ///< of this sequence: of a packed one, or as long as its cache is
};

/// The functions of an object whose bytes are the first argument, as the reference calls them. Null: it has none.
struct ScoreFunctions {
    double (*score)(const unsigned char*, double s, const ScorePair&) = nullptr;
    double (*slope)(const unsigned char*, double s, const ScorePair&) = nullptr;
    bool (*keeps)(const unsigned char*, const ScorePair&) = nullptr;
};

} // namespace flashomp
