// The matrix product of the host machine on plain vectors: a block of vector registers at a time, and while it computes
// it asks for the rows that are streamed next.
#pragma once

#include "host/lanes.hpp"
#include "host/rows_ahead.hpp"

#include <cstddef>

namespace flashomp::offload {

/// Isa: the lanes of a vector, and the register block of register_rows x register_vectors.
template <class Isa>
class MatrixProduct {
public:
    enum class Start { zero, add };

    /// Element (row, column), or vector (row, vector), is at row · row_step + column · step, where a left matrix may
    /// have its columns in groups.
    struct Matrix {
        float* data;
        std::ptrdiff_t row_step, step;
        std::ptrdiff_t group_step = 0;
    };
    struct Size {
        int rows, vectors, depth, groups = 1;
    };

    /// Rows were taken, and as many after them will be.
    FLASHOMP_INLINE void follow(const Rows& rows) { ahead_.follow(rows); }

    /// C[m][v] (+)= Σ_k A[m][k] · B[k][v] for rows m, vectors v, and k in `groups` groups of `depth`. Each float of a
    /// streamed row is multiplied with `resident_rows` others.
    FLASHOMP_OUT_OF_LINE void operator()(Matrix c, const Matrix& a, Matrix b, Size size, Start start, int resident_rows)
    {
        resident_rows_ = resident_rows;
        while (size.vectors > 0) {
            const int taken = vectors<Isa::register_vectors>(c, a, b, size, start);
            c.data += taken * c.step;
            b.data += taken * b.step;
            size.vectors -= taken;
        }
    }

private:
    using Vector = typename Lanes<Isa>::Vector;

    /// At most V vectors; 2 and 2 of 4 where V is 3, as one alone leaves the multiply-adds waiting for each other.
    /// Returns how many.
    template <int V>
    FLASHOMP_INLINE int vectors(const Matrix& c, const Matrix& a, const Matrix& b, const Size& size, Start start)
    {
        if constexpr (V > 1) {
            if (size.vectors < V || (V > 2 && size.vectors == V + 1)) {
                return vectors<V - 1>(c, a, b, size, start);
            }
        }
        constexpr int most_rows = Isa::register_rows, line_floats = RowsAhead::line_bytes / 4;
        const int products = most_rows * V * int{Isa::lanes} * size.depth * size.groups;
        const int line_products = line_floats * resident_rows_;
        const int lines = (products + line_products - 1) / line_products;
        for (int m = 0; m < size.rows; m += most_rows) {
            ahead_.ask(lines);
            const int left = size.rows - m;
            rows<most_rows, V>({c.data + m * c.row_step, c.row_step, c.step},
                               {a.data + m * a.row_step, a.row_step, a.step, a.group_step}, b,
                               left < most_rows ? left : most_rows, size, start);
        }
        return V;
    }

    /// Picks the register block with exactly `count` rows.
    template <int R, int V>
    static FLASHOMP_INLINE void rows(const Matrix& c, const Matrix& a, const Matrix& b, int count, const Size& size,
                                     Start start)
    {
        if constexpr (R > 1) {
            if (count < R) {
                return rows<R - 1, V>(c, a, b, count, size, start);
            }
        }
        register_block<R, V>(c, a, b, size.depth, size.groups, start);
    }

    template <int R, int V>
    static void register_block(Matrix c, Matrix a, Matrix b, int depth, int groups, Start start)
    {
        Vector acc[R][V] = {};
        for (int group = 0; group < groups; ++group) {
            const float* left = a.data + group * a.group_step;
#pragma GCC unroll 2 // half the steps of addresses, which CPUs that issue 4 instructions a cycle have no room for
            for (int k = 0; k < depth; ++k) {
                Vector row[V];
#pragma GCC unroll 16
                for (int v = 0; v < V; ++v) {
                    row[v] = *reinterpret_cast<const Vector*>(b.data + v * b.step);
                }
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) {
                    const float x = left[r * a.row_step];
#pragma GCC unroll 16
                    for (int v = 0; v < V; ++v) {
                        acc[r][v] += x * row[v];
                    }
                }
                left += a.step;
                b.data += b.row_step;
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) {
                Vector* target = reinterpret_cast<Vector*>(c.data + r * c.row_step + v * c.step);
                *target = start == Start::zero ? acc[r][v] : *target + acc[r][v];
            }
        }
    }

    RowsAhead ahead_;
    int resident_rows_ = 0;
};

} // namespace flashomp::offload
