// The passes over memory on the CPU: one call per pass for a whole list of tensors, raw pointers, no torch headers.
//
// A block of one parameter is worked on in chunks that stay in the first cache: formulas.h for float32 and float64 state,
// rounded.h for bfloat16, half.h for parameters of half precision. Blocks have a fixed size and are added in order: the same
// bits for any number of threads.
//
// Compiled without -ffast-math, which would drop the finiteness test, and without contraction to fused multiply-adds, which
// would make the predicted gradient after b = g - a m differ from g.

#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <vector>

#include "chunk.h"
#include "formulas.h"
#include "half.h"
#include "portable.h"
#include "rounded.h"

namespace {

constexpr int64_t BLOCK = 16 * CHUNK;  // what a thread takes at a time
constexpr int64_t ROUND = 8192;        // blocks between two additions of their sums: 256 KiB, whatever the model's size
constexpr int FIELDS = 9;

struct Block {
    void* const* pointers;  // param, grad, mean, prec, a, b, P_1, P_2, P_3
    int64_t offset, size;
    bool first;
    uint32_t seed;  // of (step, index of the parameter)
    int64_t index;  // of the tensor's first entry in the whole parameter: a shard knows where it lies
};

// A template cannot be cloned for an instruction set, these can. Half-precision parameters share the float32 passes: their
// mean gets the bits of a float32 run.
#define PASSES(C, T)                                                                                                      \
    CLONES Sums observe(const C& t, int n, bool first, const Numbers<T>& k) { return observe_chunk(t, n, first, k); } \
    CLONES Sums probe(const C& t, int n, const Numbers<T>& k) { return probe_chunk(t, n, k); }                          \
    CLONES Sums move(const C& t, int n, const Numbers<T>& k) { return move_chunk(t, n, k); }
PASSES(Chunk<float>, float)
PASSES(Chunk<double>, double)
PASSES(Rounded, float)
#undef PASSES
#define CONVERSIONS(H)                                                                                    \
    CLONES void widen(H, const uint16_t* from, float* to, int n) { widen_chunk<H>(from, to, n); }         \
    CLONES void follow(H, const uint16_t* param, float* mean, int n) { follow_chunk<H>(param, mean, n); } \
    CLONES void narrow(H, const float* mean, uint16_t* param, int n) { narrow_chunk<H>(mean, param, n); }
CONVERSIONS(Brain)
CONVERSIONS(Half)
#undef CONVERSIONS

enum Pass { OBSERVE, PROBE, MOVE };
struct Same {};  // the parameter is the mean

template <class S>
S* as(void* p, int64_t at) {
    return static_cast<S*>(p) + at;
}

template <class T>
Chunk<T> chunk_at(const Block& block, int64_t at, Chunk<T>*) {
    void* const* p = block.pointers;
    return {as<T>(p[2], at), as<T>(p[1], at), as<T>(p[3], at), as<T>(p[4], at),
            as<T>(p[5], at), as<T>(p[6], at), as<T>(p[7], at), as<T>(p[8], at)};
}

Rounded chunk_at(const Block& block, int64_t at, Rounded*) {
    void* const* p = block.pointers;
    const int64_t index = block.index + at;
    using U = uint16_t;
    return {as<float>(p[2], at), as<float>(p[1], at), as<U>(p[3], at), as<U>(p[4], at), as<U>(p[5], at), as<U>(p[6], at),
            as<U>(p[7], at),     as<U>(p[8], at),     SPREAD.of + index % CHUNK, chunk_key(block.seed, uint64_t(index / CHUNK))};
}

// H: the parameter's half precision, or Same; C: how a chunk of state is stored; T: the mean's type.
template <class H, class C, class T>
Sums work(Pass pass, const Block& block, const Constants& constants) {
    constexpr bool half = !std::is_same<H, Same>::value;
    const Numbers<T> k(constants);
    Sums sums = {0, 0, 0, 0};
    T widened[half ? CHUNK : 1];
    int n;
    for (int64_t done = 0; done < block.size; done += n) {
        const int64_t at = block.offset + done;
        const int left = CHUNK - int((block.index + at) % CHUNK);  // chunks keep to the whole parameter's grid: shards round alike
        n = int(block.size - done < left ? block.size - done : left);
        C t = chunk_at(block, at, static_cast<C*>(nullptr));
        if constexpr (half) {
            if (pass == OBSERVE) {
                widen(H(), as<uint16_t>(block.pointers[1], at), widened, n);
                follow(H(), as<uint16_t>(block.pointers[0], at), t.mean, n);
                t.grad = widened;
            }
        }
        sums.add(pass == OBSERVE ? observe(t, n, block.first, k) : pass == PROBE ? probe(t, n, k) : move(t, n, k));
        if constexpr (half)
            if (pass == MOVE) narrow(H(), t.mean, as<uint16_t>(block.pointers[0], at), n);
    }
    return sums;
}

constexpr auto FORMATS = {  // the order of FORMATS in native.py
    work<Same, Chunk<float>, float>, work<Same, Chunk<double>, double>, work<Brain, Chunk<float>, float>,
    work<Half, Chunk<float>, float>, work<Same, Rounded, float>,        work<Brain, Rounded, float>,
    work<Half, Rounded, float>};

}  // namespace

EXPORT int32_t arturo_version() { return 2; }  // VERSION of arturo/kernels/native.py: do these sources fit those?

// format: an entry of FORMATS; pass: 0 observe, 1 probe, 2 move. Per tensor: size, FIELDS pointers, whether this is its first
// observation, the seed of its rounding bits, the index of its first entry; out: its four sums.
EXPORT void arturo_pass(int32_t format, int32_t pass, int64_t tensors, const int64_t* sizes, void* const* pointers,
                        const uint8_t* first, const uint32_t* seeds, const int64_t* indices, const Constants* k,
                        int32_t threads, double* out) {
    const auto function = FORMATS.begin()[format];
    Sums* sums = reinterpret_cast<Sums*>(out);
    std::vector<Block> blocks;
    std::vector<int64_t> owners;
    std::vector<Sums> parts;
    for (int64_t i = 0; i < tensors; ++i) sums[i] = {0, 0, 0, 0};
    int64_t tensor = 0, offset = 0;
    while (tensor < tensors) {
        blocks.clear();
        int64_t entries = 0;
        owners.clear();
        while (tensor < tensors && int64_t(blocks.size()) < ROUND) {
            const int64_t left = sizes[tensor] - offset;
            if (left <= 0) {
                ++tensor;
                offset = 0;
                continue;
            }
            blocks.push_back({pointers + FIELDS * tensor, offset, left < BLOCK ? left : BLOCK, first[tensor] != 0,
                              seeds[tensor], indices[tensor]});
            owners.push_back(tensor);
            entries += blocks.back().size;
            offset += BLOCK;
        }
        const int64_t count = static_cast<int64_t>(blocks.size());
        parts.resize(blocks.size());
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && entries > 4 * BLOCK)
        for (int64_t j = 0; j < count; ++j) parts[j] = function(Pass(pass), blocks[j], *k);
        for (int64_t j = 0; j < count; ++j) sums[owners[j]].add(parts[j]);
    }
}

// One more step and this eta, in every parameter's state.
EXPORT void arturo_count(int64_t tensors, void* const* steps_then_etas, double eta) {
    for (int64_t i = 0; i < tensors; ++i) {
        *static_cast<float*>(steps_then_etas[i]) += 1;
        *static_cast<double*>(steps_then_etas[tensors + i]) = eta;
    }
}

// One more step, in every parameter's state of AdaArturo.
EXPORT void arturo_count_steps(int64_t tensors, float* const* steps) {
    for (int64_t i = 0; i < tensors; ++i) *steps[i] += 1;
}

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", "Passes over memory, called through ctypes.", -1, nullptr,
                             nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
