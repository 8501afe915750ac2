/* Attention from C: two heads of 3 queries over 5 keys, causal, compared with a double loop.
 *
 *     cc -std=c11 attention.c $(pkg-config --cflags --libs flashomp) -lm -o attention */
#include <flashomp/flashomp.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { heads = 2, queries = 3, keys = 5, head_dim = 4 };

/* A row-major tensor of floats in host memory. `shape` must live as long as the tensor. */
static flashomp_tensor floats(float* data, int64_t* shape, int32_t ndim)
{
    const flashomp_tensor tensor = {data, {FLASHOMP_CPU, 0}, ndim, {FLASHOMP_FLOAT, 32, 1}, shape, NULL, 0};
    return tensor;
}

static void expect_ok(flashomp_status status)
{
    if (status != FLASHOMP_OK) {
        fprintf(stderr, "flashomp: %s\n", flashomp_last_error());
        exit(1);
    }
}

/* softmax(q k^T / 2) v of one row, as it is written. The last query sees every key. */
static void one_row(const float* q, const float* k, const float* v, int i, int head, double* o, double* lse)
{
    const int seen = i + 1 + keys - queries;
    double sum = 0.0;
    for (int d = 0; d < head_dim; ++d) {
        o[d] = 0.0;
    }
    for (int j = 0; j < seen; ++j) {
        double score = 0.0;
        for (int d = 0; d < head_dim; ++d) {
            score += (double)q[(i * heads + head) * head_dim + d] * (double)k[(j * heads + head) * head_dim + d] / 2.0;
        }
        const double weight = exp(score);
        sum += weight;
        for (int d = 0; d < head_dim; ++d) {
            o[d] += weight * (double)v[(j * heads + head) * head_dim + d];
        }
    }
    for (int d = 0; d < head_dim; ++d) {
        o[d] /= sum;
    }
    *lse = log(sum);
}

int main(void)
{
    float q[queries * heads * head_dim], k[keys * heads * head_dim], v[keys * heads * head_dim];
    float o[queries * heads * head_dim], lse[heads * queries];
    for (int i = 0; i < queries * heads * head_dim; ++i) {
        q[i] = (float)sin(1.0 + i);
    }
    for (int i = 0; i < keys * heads * head_dim; ++i) {
        k[i] = (float)cos(2.0 * i);
        v[i] = (float)sin(3.0 * i);
    }

    int64_t q_shape[] = {1, queries, heads, head_dim}, k_shape[] = {1, keys, heads, head_dim};
    int64_t lse_shape[] = {1, heads, queries};
    const flashomp_tensor q_view = floats(q, q_shape, 4), k_view = floats(k, k_shape, 4);
    const flashomp_tensor v_view = floats(v, k_shape, 4), o_view = floats(o, q_shape, 4);
    const flashomp_tensor lse_view = floats(lse, lse_shape, 3);

    flashomp_forward_args args;
    flashomp_forward_args_init(&args, sizeof args);
    args.q = &q_view;
    args.k = &k_view;
    args.v = &v_view;
    args.o = &o_view;
    args.lse = &lse_view;
    flashomp_options options;
    flashomp_options_init(&options, sizeof options);
    options.causal = FLASHOMP_CAUSAL_BOTTOM_RIGHT;
    flashomp_report report;
    flashomp_report_init(&report, sizeof report);
    expect_ok(flashomp_forward(&args, &options, &report));

    double largest = 0.0;
    for (int head = 0; head < heads; ++head) {
        for (int i = 0; i < queries; ++i) {
            double expected[head_dim], expected_lse;
            one_row(q, k, v, i, head, expected, &expected_lse);
            for (int d = 0; d < head_dim; ++d) {
                largest = fmax(largest, fabs((double)o[(i * heads + head) * head_dim + d] - expected[d]));
            }
            largest = fmax(largest, fabs((double)lse[head * queries + i] - expected_lse));
        }
    }
    printf("flashomp %s: largest error %.1e (%s)\n", flashomp_version(), largest, report.ran_on);
    if (!(largest < 1e-5)) {
        return 1;
    }

    /* Bad input writes nothing and says what was wrong. */
    options.softcap = -1.0;
    if (flashomp_forward(&args, &options, NULL) != FLASHOMP_BAD_ARGUMENT) {
        return 1;
    }
    printf("refused: %s\n", flashomp_last_error());
    return 0;
}
