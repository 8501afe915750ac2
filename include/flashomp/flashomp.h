/* The C interface: every call and every option, for C, Fortran, Julia, Python and whatever else calls C.
 *
 * C11 and C++98 compile this file. Nothing throws through these functions: they return a status, and
 * flashomp_last_error() has the sentence. docs/c.md has a program to begin with. In comments B is the batch, Nq and Nk
 * are lengths, Hq and Hkv numbers of heads (Hkv divides Hq). attention.hpp has the rules for threads and forks, for NaN
 * and infinities, and for what is kept between calls; they are those of C++.
 *
 * Set up each struct that begins with `size` by its function flashomp_..._init(), then change members. A struct of
 * zeros is not the defaults: windows of 0, 0 leave each query one key, and the call succeeds.
 *
 * ABI policy (docs/c.md). Functions keep their names and parameters as long as FLASHOMP_ABI_VERSION stays, which is the
 * number in the library's SONAME. Structs that begin with `size` grow at their end. For a member that is added later
 * zero bytes mean what the library did before (not so for the members of today: see above). A caller sets `size` to
 * what the caller was compiled with (flashomp_*_init() does), and the library takes members beyond for "not given".
 * Enumerators keep their values. The size of flashomp_tensor never changes. */
#ifndef FLASHOMP_FLASHOMP_H
#define FLASHOMP_FLASHOMP_H

/* NOLINTBEGIN(modernize-*, readability-identifier-naming): this is C. */

#include "flashomp/version.h" /* FLASHOMP_VERSION_MAJOR and so on */

#include <stddef.h>
#include <stdint.h>

/* Changes with what is incompatible. */
#define FLASHOMP_ABI_VERSION 0

#if defined(__GNUC__)
#define FLASHOMP_API __attribute__((visibility("default")))
#else
#define FLASHOMP_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What a function returns. */
typedef enum flashomp_status {
    FLASHOMP_OK = 0,
    FLASHOMP_BAD_ARGUMENT = 1,  /* the sentence names it; nothing was written */
    FLASHOMP_RUN_FAILURE = 2,   /* the machine failed; the contents of the outputs are undefined */
    FLASHOMP_OUT_OF_MEMORY = 3, /* the host has no memory for the lists of a call; outputs as above */
    FLASHOMP_UNEXPECTED = 4     /* a defect of the library; outputs as above */
} flashomp_status;

/* The sentence of this thread's last function that failed; "" before there was one. The text stays until the thread's
 * next failure or end. A sentence of 1024 bytes or more is cut. */
FLASHOMP_API const char* flashomp_last_error(void);

/* "0.1.0", and FLASHOMP_ABI_VERSION, of the library that runs, which may be newer than this header. */
FLASHOMP_API const char* flashomp_version(void);
FLASHOMP_API int flashomp_abi_version(void);

/* Element types and devices as DLPack codes them. */
typedef enum flashomp_dtype_code {
    FLASHOMP_INT = 0,
    FLASHOMP_UINT = 1,
    FLASHOMP_FLOAT = 2,
    FLASHOMP_BFLOAT = 4,
    FLASHOMP_BOOL = 6,
    FLASHOMP_FLOAT8_E4M3FN = 10
} flashomp_dtype_code;

typedef enum flashomp_device_type {
    FLASHOMP_CPU = 1,
    FLASHOMP_CUDA = 2,         /* memory of a GPU, of cudaMalloc or omp_target_alloc (tensor.hpp) */
    FLASHOMP_CUDA_HOST = 3,    /* page-locked host memory, which is host memory */
    FLASHOMP_CUDA_MANAGED = 13 /* counts as GPU memory when backend cuda or a stream is named, and as host memory
                                  otherwise; in a run without options, as it did for prepare */
} flashomp_device_type;

typedef struct flashomp_device {
    int32_t device_type; /* flashomp_device_type */
    int32_t device_id;   /* a GPU's number; all tensors on GPUs and the options' device agree */
} flashomp_device;

typedef struct flashomp_dtype {
    uint8_t code; /* flashomp_dtype_code */
    uint8_t bits; /* 8, 16, 32 or 64; a boolean has 8, or 1 where an element is a byte of 8 booleans (a mask's bits) */
    uint16_t lanes; /* 1 */
} flashomp_dtype;

/* A strided view, which owns nothing. The layout is that of DLPack's DLTensor (versions 0.2 to 1.x), so that a pointer
 * to a DLTensor may be given for a pointer to a flashomp_tensor. ndim is at most 4; a null pointer or ndim 0 is "not
 * given". strides count elements; null means row-major. Axes are [batch, seqlen, heads, head_dim], of packed sequences
 * [total, heads, head_dim]; the last axis has stride 1. Nobody writes to shape and strides, or keeps the pointers. */
typedef struct flashomp_tensor {
    void* data;
    flashomp_device device;
    int32_t ndim;
    flashomp_dtype dtype;
    int64_t* shape;
    int64_t* strides;
    uint64_t byte_offset; /* of the first element from data; of no account where data is null */
} flashomp_tensor;

typedef enum flashomp_causal {
    FLASHOMP_CAUSAL_NONE = 0,
    FLASHOMP_CAUSAL_TOP_LEFT = 1,
    FLASHOMP_CAUSAL_BOTTOM_RIGHT = 2
} flashomp_causal;

typedef enum flashomp_backend {
    FLASHOMP_BACKEND_AUTO = 0,
    FLASHOMP_BACKEND_OPENMP = 1,
    FLASHOMP_BACKEND_REFERENCE = 2,
    FLASHOMP_BACKEND_CUDA = 3
} flashomp_backend;

typedef enum flashomp_machine {
    FLASHOMP_MACHINE_AUTO = 0,
    FLASHOMP_MACHINE_HOST = 1,
    FLASHOMP_MACHINE_PLAIN = 2,
    FLASHOMP_MACHINE_TENSOR = 3,
    FLASHOMP_MACHINE_HOPPER = 4
} flashomp_machine;

typedef enum flashomp_device_choice {
    FLASHOMP_DEVICE_AUTO = 0, /* the tensors' GPU where they are on one, else the first GPU, else the host */
    FLASHOMP_DEVICE_HOST = 1,
    FLASHOMP_DEVICE_GPU = 2
} flashomp_device_choice;

/* The workspace of a call, from the caller. Staged and gathered copies of tensors on the host, and a second computation
 * (attention.hpp), take memory of the library. */
typedef struct flashomp_allocator {
    size_t size; /* sizeof(flashomp_allocator) */
    void* context;
    /* `bytes` bytes at a multiple of `alignment`, on the host (FLASHOMP_CPU, device_id 0) or on GPU `device_id`
     * (FLASHOMP_CUDA); null when there are none. Called at most once a call, and not for 0 bytes. On a call's stream
     * the memory is used in the stream's order. */
    void* (*allocate)(void* context, int64_t bytes, int64_t alignment, int32_t device_type, int32_t device_id,
                      void* stream);
    /* Gets what allocate() returned, once, when the call returns, failed or not: on a stream before its kernels are
     * done. An exception of C++ that leaves allocate(), or release() after a call that succeeded, is
     * FLASHOMP_UNEXPECTED; after a failure the call tells of the failure. */
    void (*release)(void* context, void* memory, int64_t bytes, int32_t device_type, int32_t device_id, void* stream);
} flashomp_allocator;

/* Rows of a shard in a sequence of `whole` rows: count[0] of them from first[0] on, then count[1] from first[1] on,
 * which is first[0] + count[0] or later. A whole of 0: the rows are the whole sequence. */
typedef struct flashomp_positions {
    int64_t whole;
    int64_t first[2], count[2];
} flashomp_positions;

/* Options of a call. Backward is given those of its forward. Tensors that are null are not given. has_scale, has_stream
 * and tile_global_memory are 0 or 1. Not all defaults are zero: call flashomp_options_init(). Query i sees key j where
 * causal, window and all masks keep the pair. options.hpp has more of each. */
typedef struct flashomp_block_mask flashomp_block_mask;
typedef struct flashomp_options {
    size_t size; /* sizeof(flashomp_options) */
    int has_scale;
    double scale;                        /* multiplies q.k; of no account unless has_scale; default 1/sqrt(head_dim) */
    int32_t causal;                      /* flashomp_causal: top left keeps j <= i, bottom right j <= i + Nk - Nq */
    int64_t window_left, window_right;   /* keeps i + Nk - Nq - left <= j <= i + Nk - Nq + right; -1 is unbounded */
    double softcap;                      /* c > 0: score = c tanh(score / c); 0 is off */
    const flashomp_tensor* alibi_slopes; /* float32 [Hq] or [B, Hq]: score -= slope |i + Nk - Nq - j| */
    const flashomp_tensor* bias;         /* float32 or q's dtype, [1|B, 1|Hq, 1|Nq, 1|Nk]: score += bias */
    const flashomp_tensor* key_padding_mask; /* boolean [B, Nk]: 0 hides the key */
    const flashomp_tensor* cu_seqlens_q;   /* int32 [B + 1], host memory: sequence b has rows [b] to [b + 1] - 1 of q */
    const flashomp_tensor* cu_seqlens_k;   /* int32 [B + 1], host memory: the same for k and v */
    const flashomp_tensor* sink;           /* float32 [Hq]: a logit in the softmax's denominator and the LSE only */
    const flashomp_tensor* q_scale;        /* float32 [Hq] or [B, Hq]: factors of q, float8_e4m3 only */
    const flashomp_tensor* k_scale;        /* float32 [Hkv] or [B, Hkv]: factors of k of 8 bits; options.hpp */
    const flashomp_tensor* v_scale;        /* float32 [Hkv] or [B, Hkv]: factors of v of 8 bits; options.hpp */
    double dropout_probability;            /* chance that a probability is dropped, in [0, 1) */
    uint64_t dropout_seed, dropout_offset; /* the mask depends on them; 0, 0 draw one and the same mask in each call */
    int32_t backend, machine;              /* flashomp_backend, flashomp_machine */
    int32_t device_choice, device_index;   /* flashomp_device_choice; index counts for FLASHOMP_DEVICE_GPU */
    int32_t threads;                       /* 0 takes OMP_NUM_THREADS */
    int has_stream;
    void* stream; /* CUstream or cudaStream_t, of no account unless has_stream */
    int32_t tile_resident_rows, tile_stream_rows, tile_teams, tile_team_threads;
    int tile_global_memory;
    /* Of flashomp_forward() and flashomp_backward(), which refuse one for backend reference; of no account in all other
     * functions, which do not look at it. Null takes the library's memory. */
    const flashomp_allocator* allocator;
    /* k and v are a key/value cache where any of these is given. All are int32 in host memory. */
    const flashomp_tensor* cache_seqlens;     /* [B]: keys of each sequence; all of the cache where null */
    const flashomp_tensor* cache_batch_index; /* [B]: k and v are [caches, Nk, Hkv, ...], and sequence b has this one */
    const flashomp_tensor* block_table;       /* [B, max_pages]: k and v are [pages, page_size, Hkv, ...] */
    const flashomp_tensor* kv_indptr;         /* [B + 1]: where the pages of each sequence begin in kv_indices */
    const flashomp_tensor* kv_indices;        /* [pages of all sequences]: their numbers */
    const flashomp_tensor* kv_last_page_len;  /* [B]: rows in use of each sequence's last page */
    /* Boolean [1|B, 1|Hq, 1|Nq, 1|Nk] of any strides; or bits [1|B, 1|Hq, 1|Nq, ceil(Nk / 8)], the first key in the
     * lowest bit of a byte: 0 hides the pair. */
    const flashomp_tensor* mask;
    const flashomp_block_mask* block_mask; /* may be freed when the call returns, of a prepared call after its runs */
    /* Of a shard: where the rows of q, and those of k and v, stand. i, j, Nq and Nk of masks, ALiBi and dropout are
     * then those of the whole sequence (attention.hpp, "Shards"). */
    flashomp_positions positions_q, positions_k;
    /* Of some sequences and query heads of a larger call: the numbers of their first ones there, by which dropout goes
     * (attention.hpp, "Shards"). */
    int64_t first_sequence, first_head;
} flashomp_options;

/* Tensors of the forward pass. q, k, v and o share one dtype: float32, bfloat16 or float16; or q, k and v are
 * float8_e4m3 and o is bfloat16. Or k and v alone are 8 bits, a key/value cache: FLASHOMP_FLOAT8_E4M3FN or
 * FLASHOMP_INT with 8. Packed sequences have one axis, total, for B and length: [total_q, Hq, head_dim], lse
 * [Hq, total_q]. head_dim is 1 to 576 and head_dim_v 1 to 512. Inputs may share memory: v may be a view of k's first
 * columns, as in multi-head latent attention. */
typedef struct flashomp_forward_args {
    size_t size;
    const flashomp_tensor* q;   /* [B, Nq, Hq, head_dim] */
    const flashomp_tensor* k;   /* [B, Nk, Hkv, head_dim] */
    const flashomp_tensor* v;   /* [B, Nk, Hkv, head_dim_v] */
    const flashomp_tensor* o;   /* out: [B, Nq, Hq, head_dim_v], or float32 whatever q is */
    const flashomp_tensor* lse; /* out: float32 [B, Hq, Nq], log-sum-exp of each row of scores; -inf without keys */
} flashomp_forward_args;

/* Tensors of the backward pass, in the shapes and dtypes of the forward pass; float8_e4m3 has none. */
typedef struct flashomp_backward_args {
    size_t size;
    const flashomp_tensor* q; /* q, k and v as forward was given them */
    const flashomp_tensor* k;
    const flashomp_tensor* v;
    const flashomp_tensor* o; /* o and lse as forward wrote them */
    const flashomp_tensor* lse;
    const flashomp_tensor* dout;  /* gradient of o: as o */
    const flashomp_tensor* dq;    /* out: as q; dq, dk and dv may be float32 whatever q is */
    const flashomp_tensor* dk;    /* out: as k */
    const flashomp_tensor* dv;    /* out: as v */
    const flashomp_tensor* dbias; /* out, null where nobody asks: as the option bias */
    const flashomp_tensor* dsink; /* out, null where nobody asks: float32 [Hq] */
} flashomp_backward_args;

/* New keys and values of a key/value cache, in one dtype: float32, bfloat16 or float16; the cache may have 8 bits, with
 * k_scale and v_scale (AppendArgs of cache.hpp). */
typedef struct flashomp_append_args {
    size_t size;
    const flashomp_tensor* k;          /* [B, N, Hkv, head_dim], or packed with cu_seqlens_k [total, Hkv, head_dim] */
    const flashomp_tensor* v;          /* [B, N, Hkv, head_dim_v], or packed; null, as v_cache: a view of the keys */
    const flashomp_tensor* k_cache;    /* in and out: as forward's k with the options of a cache */
    const flashomp_tensor* v_cache;    /* in and out: as forward's v */
    const flashomp_tensor* rotary_cos; /* [positions, rotary_dim / 2], float32 or q's dtype; null: nothing turns */
    const flashomp_tensor* rotary_sin; /* as rotary_cos */
    const flashomp_tensor* q;          /* [B, Nq, Hq, head_dim], or packed with cu_seqlens_q; null where nobody asks */
    const flashomp_tensor* q_out;      /* out, with q: as q, which it may be */
    int rotary_halves;                 /* 0: elements 2i and 2i + 1 turn; 1: elements i and i + rotary_dim / 2 */
} flashomp_append_args;

/* What a call did (Report of attention.hpp). */
typedef struct flashomp_report {
    size_t size;
    char backend[16], machine[48], ran_on[128], note[256]; /* cut where longer; end with a zero */
    int on_device, tuned, computed_twice;
    double seconds;
    int64_t extra_bytes, staged_bytes, standard_bytes;
} flashomp_report;

/* A GPU that a backend can use (DeviceInfo of device.hpp). Empty texts and 0 are unknown. */
typedef struct flashomp_device_info {
    size_t size;
    char name[128], capability[16], driver[16]; /* cut where longer; end with a zero */
    int32_t index, multiprocessors;
    int64_t l2_bytes, shared_bytes;
    int32_t shares_cuda_memory; /* 1: takes memory of cudaMalloc and CUDA's streams (tensor.hpp) */
    int32_t reserved;
} flashomp_device_info;

/* How the library was built (BuildInfo of version.hpp). `size` is the library's: look before you read a member that
 * came later. */
typedef struct flashomp_build {
    size_t size;
    const char *version, *commit, *compiler, *flags, *offload, *backends;
} flashomp_build;

/* Sets the first `size` bytes to the defaults, and the member `size`. Call with sizeof of the struct. Nothing happens
 * to a null pointer, nor where `size` is less than sizeof(size_t). */
FLASHOMP_API void flashomp_options_init(flashomp_options* options, size_t size);
FLASHOMP_API void flashomp_forward_args_init(flashomp_forward_args* args, size_t size);
FLASHOMP_API void flashomp_backward_args_init(flashomp_backward_args* args, size_t size);
FLASHOMP_API void flashomp_append_args_init(flashomp_append_args* args, size_t size);
FLASHOMP_API void flashomp_allocator_init(flashomp_allocator* allocator, size_t size);
FLASHOMP_API void flashomp_report_init(flashomp_report* report, size_t size);
FLASHOMP_API void flashomp_device_info_init(flashomp_device_info* info, size_t size);

/* forward() and backward(). Null for options: the defaults. Null for report: nobody asks. A report is written where the
 * call succeeds. */
FLASHOMP_API flashomp_status flashomp_forward(const flashomp_forward_args* args, const flashomp_options* options,
                                              flashomp_report* report);
FLASHOMP_API flashomp_status flashomp_backward(const flashomp_backward_args* args, const flashomp_options* options,
                                               flashomp_report* report);

/* append(): writes new keys and values into a cache. options: its tables, causal, window, and where the call runs. */
FLASHOMP_API flashomp_status flashomp_append(const flashomp_append_args* args, const flashomp_options* options,
                                             flashomp_report* report);

/* merge(): attention over the union of two disjoint sets of keys. Sentences call the parts a.o, a.lse, b.o and b.lse.
 */
FLASHOMP_API flashomp_status flashomp_merge(const flashomp_tensor* o_a, const flashomp_tensor* lse_a,
                                            const flashomp_tensor* o_b, const flashomp_tensor* lse_b,
                                            const flashomp_tensor* o, const flashomp_tensor* lse,
                                            const flashomp_options* options, flashomp_report* report);

/* dropout_mask(): which probabilities a call with this dropout keeps; boolean [B, Hq, Nq, Nk] on the host. */
FLASHOMP_API flashomp_status flashomp_dropout_mask(double probability, uint64_t seed, uint64_t offset,
                                                   const flashomp_tensor* mask);

/* Block-sparse masks (BlockMask of block_mask.hpp) of [1|B, 1|Hq, Nq, Nk] in blocks of block_q x block_k pairs, from 16
 * to 65536 each. Nothing keeps the tensors and arrays. *block_mask is null after a failure.
 * from_mask: a boolean host tensor of any strides. from_documents: int32 [B, N] on the host; a token sees those of its
 * own document, with causal (0 or 1) only j <= i; a negative one sees nothing. from_blocks: compressed rows, starts
 * [batch * heads_q * ceil(Nq / block_q) + 1], ascending blocks of keys, and of each -1 (whole) or the number of its
 * bits; bits: [partial block, block_q, ceil(block_k / 8)] bytes, the first key in the lowest bit. */
FLASHOMP_API flashomp_status flashomp_block_mask_from_mask(const flashomp_tensor* mask, int64_t block_q,
                                                           int64_t block_k, flashomp_block_mask** block_mask);
FLASHOMP_API flashomp_status flashomp_block_mask_from_documents(const flashomp_tensor* ids, int causal, int64_t block_q,
                                                                int64_t block_k, flashomp_block_mask** block_mask);
FLASHOMP_API flashomp_status flashomp_block_mask_from_blocks(int64_t batch, int64_t heads_q, int64_t seqlen_q,
                                                             int64_t seqlen_k, int64_t block_q, int64_t block_k,
                                                             const int64_t* starts, int64_t start_count,
                                                             const int32_t* blocks, const int32_t* bits_of_block,
                                                             int64_t block_count, const uint8_t* bits,
                                                             int64_t bit_bytes, flashomp_block_mask** block_mask);
/* Nothing happens to a null pointer. */
FLASHOMP_API void flashomp_block_mask_free(flashomp_block_mask* block_mask);

/* A call that is decided once and run many times (prepared.hpp). */
typedef struct flashomp_prepared flashomp_prepared;

/* data of tensors may be null here, but for cu_seqlens_q and cu_seqlens_k. *prepared is null after a failure. The
 * allocator of the options is of no account here and in runs, which are given their workspace. */
FLASHOMP_API flashomp_status flashomp_prepare_forward(const flashomp_forward_args* args,
                                                      const flashomp_options* options, flashomp_prepared** prepared);
FLASHOMP_API flashomp_status flashomp_prepare_backward(const flashomp_backward_args* args,
                                                       const flashomp_options* options, flashomp_prepared** prepared);
/* Bytes of the workspace of a run, at a multiple of 256, and where the workspace must be: FLASHOMP_CPU or
 * FLASHOMP_CUDA. -1 of a null pointer. */
FLASHOMP_API int64_t flashomp_workspace_bytes(const flashomp_prepared* prepared);
FLASHOMP_API int32_t flashomp_workspace_device_type(const flashomp_prepared* prepared);
/* options: null, or those that prepare got with other addresses of tensors, dropout seed and offset, or stream; they
 * are needed where the call was prepared with a stream. Two threads must not run one prepared call at a time. */
FLASHOMP_API flashomp_status flashomp_run_forward(flashomp_prepared* prepared, const flashomp_forward_args* args,
                                                  const flashomp_options* options, void* workspace,
                                                  int64_t workspace_bytes, flashomp_report* report);
FLASHOMP_API flashomp_status flashomp_run_backward(flashomp_prepared* prepared, const flashomp_backward_args* args,
                                                   const flashomp_options* options, void* workspace,
                                                   int64_t workspace_bytes, flashomp_report* report);
/* Nothing happens to a null pointer. */
FLASHOMP_API void flashomp_prepared_free(flashomp_prepared* prepared);

/* GPUs that a backend can use now; -1 after a failure. flashomp_get_device() tells of each, from 0. */
FLASHOMP_API int flashomp_device_count(int32_t backend);
FLASHOMP_API flashomp_status flashomp_get_device(int32_t backend, int32_t index, flashomp_device_info* info);

/* The best instruction set that the host tile machine has for this CPU, for tensors of the type; of no type where
 * dtype is null. Null after a failure (the environment variable FLASHOMP_HOST_ISA names none). */
FLASHOMP_API const char* flashomp_host_isa(const flashomp_dtype* dtype);

/* Lives as long as the library. */
FLASHOMP_API const flashomp_build* flashomp_get_build(void);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-*, readability-identifier-naming) */

#endif
