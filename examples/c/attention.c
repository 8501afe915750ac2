/* Attention from C: two heads of 3 queries over 5 keys, causal, forward and backward, and the forward call once more as
 * a prepared call. All results are compared with loops in double. For a flashomp that was installed below DIR:
 *
 *     export PKG_CONFIG_PATH=DIR/lib/pkgconfig
 *     cc -std=c11 attention.c $(pkg-config --cflags --libs flashomp) -Wl,-rpath,DIR/lib -lm -o attention */
#include <flashomp/flashomp.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    heads = 2,
    queries = 3,
    keys = 5,
    head_dim = 4,
    of_queries = queries * heads * head_dim,
    of_keys = keys * heads * head_dim
};

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

/* What the library should give, in double. */
typedef struct expected_results {
    double o[of_queries], lse[heads * queries], dq[of_queries], dk[of_keys], dv[of_keys];
} expected_results;

static double dot(const float* a, const float* b)
{
    double sum = 0.0;
    for (int d = 0; d < head_dim; ++d) {
        sum += (double)a[d] * (double)b[d];
    }
    return sum;
}

/* softmax(q k^T / 2) v of one row and its part of the gradients, as they are written. The last query sees every key. */
static void add_row(const float* q, const float* k, const float* v, const float* dout, int i, int head,
                    expected_results* results)
{
    const int row = (i * heads + head) * head_dim;
    const int seen = i + 1 + keys - queries;
    double probability[keys], sum = 0.0, mean = 0.0;
    for (int j = 0; j < seen; ++j) {
        probability[j] = exp(dot(q + row, k + (j * heads + head) * head_dim) / 2.0);
        sum += probability[j];
    }
    results->lse[head * queries + i] = log(sum);
    for (int j = 0; j < seen; ++j) {
        const int key = (j * heads + head) * head_dim;
        probability[j] /= sum;
        mean += probability[j] * dot(dout + row, v + key);
        for (int d = 0; d < head_dim; ++d) {
            results->o[row + d] += probability[j] * (double)v[key + d];
            results->dv[key + d] += probability[j] * (double)dout[row + d];
        }
    }
    for (int j = 0; j < seen; ++j) {
        const int key = (j * heads + head) * head_dim;
        const double dscore = probability[j] * (dot(dout + row, v + key) - mean);
        for (int d = 0; d < head_dim; ++d) {
            results->dq[row + d] += dscore * (double)k[key + d] / 2.0;
            results->dk[key + d] += dscore * (double)q[row + d] / 2.0;
        }
    }
}

/* The largest difference so far and of these numbers; a NaN counts as infinity. */
static double largest_of(double largest, const float* got, const double* expected, int count)
{
    for (int i = 0; i < count; ++i) {
        const double difference = fabs((double)got[i] - expected[i]);
        largest = fmax(largest, difference >= 0.0 ? difference : INFINITY);
    }
    return largest;
}

/* The forward call, decided once and run for a second o and lse. The workspace of a call on the host is host memory. */
static void run_prepared(flashomp_forward_args args, flashomp_options options)
{
    options.device_choice = FLASHOMP_DEVICE_HOST;
    flashomp_prepared* prepared = NULL;
    expect_ok(flashomp_prepare_forward(&args, &options, &prepared));
    const int64_t bytes = flashomp_workspace_bytes(prepared);
    void* const workspace = aligned_alloc(256, ((size_t)bytes + 255) / 256 * 256 + 256); /* not for 0 bytes */
    if (workspace == NULL) {
        fprintf(stderr, "no memory for the workspace\n");
        exit(1);
    }
    for (int run = 0; run < 2; ++run) {
        expect_ok(flashomp_run_forward(prepared, &args, NULL, workspace, bytes, NULL));
    }
    free(workspace);
    flashomp_prepared_free(prepared);
}

int main(void)
{
    float q[of_queries], k[of_keys], v[of_keys], dout[of_queries];
    float o[of_queries], lse[heads * queries], dq[of_queries], dk[of_keys], dv[of_keys];
    float o_again[of_queries], lse_again[heads * queries];
    for (int i = 0; i < of_queries; ++i) {
        q[i] = (float)sin(1.0 + i);
        dout[i] = (float)cos(5.0 * i);
        o_again[i] = NAN; /* to see that the prepared call writes all of it */
    }
    for (int i = 0; i < of_keys; ++i) {
        k[i] = (float)cos(2.0 * i);
        v[i] = (float)sin(3.0 * i);
    }

    int64_t q_shape[] = {1, queries, heads, head_dim}, k_shape[] = {1, keys, heads, head_dim};
    int64_t lse_shape[] = {1, heads, queries};
    const flashomp_tensor q_view = floats(q, q_shape, 4), k_view = floats(k, k_shape, 4);
    const flashomp_tensor v_view = floats(v, k_shape, 4), o_view = floats(o, q_shape, 4);
    const flashomp_tensor lse_view = floats(lse, lse_shape, 3), dout_view = floats(dout, q_shape, 4);
    const flashomp_tensor dq_view = floats(dq, q_shape, 4), dk_view = floats(dk, k_shape, 4);
    const flashomp_tensor dv_view = floats(dv, k_shape, 4);
    const flashomp_tensor o_again_view = floats(o_again, q_shape, 4), lse_again_view = floats(lse_again, lse_shape, 3);

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

    /* Backward takes what forward was given and wrote, with the same options. */
    flashomp_backward_args gradients;
    flashomp_backward_args_init(&gradients, sizeof gradients);
    gradients.q = &q_view;
    gradients.k = &k_view;
    gradients.v = &v_view;
    gradients.o = &o_view;
    gradients.lse = &lse_view;
    gradients.dout = &dout_view;
    gradients.dq = &dq_view;
    gradients.dk = &dk_view;
    gradients.dv = &dv_view;
    expect_ok(flashomp_backward(&gradients, &options, NULL));

    args.o = &o_again_view;
    args.lse = &lse_again_view;
    run_prepared(args, options);

    expected_results expected;
    memset(&expected, 0, sizeof expected);
    for (int head = 0; head < heads; ++head) {
        for (int i = 0; i < queries; ++i) {
            add_row(q, k, v, dout, i, head, &expected);
        }
    }
    double largest = largest_of(0.0, o, expected.o, of_queries);
    largest = largest_of(largest, lse, expected.lse, heads * queries);
    largest = largest_of(largest, dq, expected.dq, of_queries);
    largest = largest_of(largest, dk, expected.dk, of_keys);
    largest = largest_of(largest, dv, expected.dv, of_keys);
    largest = largest_of(largest, o_again, expected.o, of_queries);
    largest = largest_of(largest, lse_again, expected.lse, heads * queries);
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
