// The model's head: scores of all tokens by the table of embeddings itself (tied weights), and cross entropy.
#pragma once

#include "matrix.hpp"

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace gpt {

/// z = x·Eᵀ, loss_i = log Σ_v exp z_iv − z_i,target of every row i. With `dx`, also the gradients of Σ_i loss_i/rows:
/// dz = (softmax(z) − 1[v = target])/rows, dx = dz·E, dE += dzᵀ·x. z is there for some rows at a time: it would
/// be the largest matrix of the model.
template <class C>
std::vector<double> cross_entropy(const Matrix<C>& x, const Rows<C>& table, std::span<const std::int32_t> targets,
                                  Matrix<C>* dx, Rows<C>* dtable)
{
    constexpr Index rows_at_a_time = 1024;
    constexpr Index block_of_table = 64;
    std::vector<double> losses(targets.size());
    const C weight = C(1) / static_cast<C>(x.rows());
    Matrix<C> z(std::min(rows_at_a_time, x.rows()), table.rows());
    if (dx != nullptr) {
        dx->resize(x.rows(), x.cols());
    }
    for (Index start = 0; start < x.rows(); start += rows_at_a_time) {
        const Index rows = std::min(rows_at_a_time, x.rows() - start);
        for_blocks(rows, block_rows, [&](Index first, Index count) {
            auto block = z.middleRows(first, count);
            block.noalias() = x.middleRows(start + first, count) * table.transpose();
            for (Index i = 0; i < count; ++i) {
                const auto at = static_cast<std::size_t>(start + first + i);
                auto row = block.row(i);
                const C score = row(targets[at]);
                const C most = row.maxCoeff();
                row = (row.array() - most).exp().matrix();
                const C sum = row.sum();
                losses[at] = static_cast<double>(std::log(sum)) + static_cast<double>(most - score);
                if (dx != nullptr) {
                    row *= weight / sum;
                    row(targets[at]) -= weight;
                }
            }
            if (dx != nullptr) {
                dx->middleRows(start + first, count).noalias() = block * table;
            }
        });
        if (dx != nullptr) {
            for_blocks(table.rows(), block_of_table, [&](Index first, Index count) {
                dtable->middleRows(first, count).noalias() +=
                    z.topRows(rows).middleCols(first, count).transpose() * x.middleRows(start, rows);
            });
        }
    }
    return losses;
}

} // namespace gpt
