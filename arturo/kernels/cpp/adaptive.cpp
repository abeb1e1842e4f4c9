// AdaArturo's passes for whole lists of tensors, see adaptive.h and tiles.h. Blocks have a fixed size and are added in order:
// the same bits for any number of threads, given the same first bases, which torch's eigh makes.

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=fast")  // a seventh off the time where everything is in a cache
#endif

#include "adaptive.h"

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "chunk.h"
#include "half.h"
#include "householder.h"
#include "portable.h"
#include "settle.h"
#include "tiles.h"

namespace {

constexpr int64_t BLOCK = 16 * CHUNK;  // what a thread takes at a time
constexpr int64_t ROUND = 8192;        // blocks between two additions of their sums

struct Block {
    const LearnedTensor* tensor;
    int64_t offset, size;
    bool squares;               // to add up the squares of the mean
    double keep, pull, length, gain;  // of a move
};

// A template cannot be cloned for an instruction set, these can.
#define PASSES(T)                                                                                                         \
    CLONES LearnedSums observe(const LearnedChunk<T>& t, int n, const LearnedNumbers<T>& k) {                            \
        return observe_learned(t, n, k);                                                                           \
    }                                                                                                                    \
    CLONES void move(const LearnedChunk<T>& t, int n, const LearnedNumbers<T>& k) { move_learned(t, n, k); }             \
    CLONES double squares(const LearnedChunk<T>& t, int n) { return squares_of(t, n); }                                  \
    CLONES LearnedSums pass_tile(TilePass pass, const TiledMatrix& m, int64_t number, const Buffers<T>& at) {            \
        return tile_pass<T>(pass, m, number, at);                                                                        \
    }                                                                                                                    \
    CLONES void make_orthogonal(T* A, int n, const std::vector<int64_t>& rows) { orthogonal(A, n, rows); }
PASSES(float)
PASSES(double)
#undef PASSES
#define CONVERSIONS(H)                                                                                    \
    CLONES void widen(H, const uint16_t* from, float* to, int n) { widen_chunk<H>(from, to, n); }         \
    CLONES void follow(H, const uint16_t* param, float* mean, int n) { follow_chunk<H>(param, mean, n); } \
    CLONES void narrow(H, const float* mean, uint16_t* param, int n) { narrow_chunk<H>(mean, param, n); }
CONVERSIONS(Brain)
CONVERSIONS(Half)
#undef CONVERSIONS

CLONES LearnedSums observe_kept(const Kept& kept, const LearnedChunk<float>& t, int n, const LearnedNumbers<float>& k) {
    return observe_rounded(kept, t, n, k);
}

CLONES void move_kept(const Kept& kept, const LearnedChunk<float>& t, int n, const LearnedNumbers<float>& k) {
    move_rounded(kept, t, n, k);
}

enum Pass { OBSERVE, MOVE };
struct Same {};  // the parameter is the mean

template <class S>
S* as(void* p, int64_t at) {
    return p ? static_cast<S*>(p) + at : nullptr;
}

// H: the parameter's half precision, or Same; T: the mean's type; ROUNDED: state in bfloat16.
template <class H, class T, bool ROUNDED>
LearnedSums work(Pass pass, const Block& block) {
    constexpr bool half = !std::is_same<H, Same>::value;
    constexpr int STRETCH = half ? CHUNK : int(BLOCK);  // buffers are short; otherwise fewer calls
    const LearnedTensor& tensor = *block.tensor;
    const double anticipation = ROUNDED ? 0 : anticipated(tensor.gain);  // rounding twice would lose digits
    const LearnedNumbers<T> k(tensor, block.keep, block.pull, block.length,
                              pass == OBSERVE ? anticipation : (block.gain - anticipation) / (1 - anticipation));
    LearnedSums sums = {0, 0, 0, 0, 0, 0, 0};
    T widened[half ? CHUNK : 1];
    int n;
    for (int64_t done = 0; done < block.size; done += n) {
        const int64_t at = block.offset + done, index = tensor.index + at;
        const int left = ROUNDED ? CHUNK - int(index % CHUNK) : STRETCH;  // rounding keeps to the whole parameter's grid
        n = int(block.size - done < left ? block.size - done : left);
        LearnedChunk<T> t = {as<T>(tensor.mean, at), as<T>(tensor.grad, at), as<T>(tensor.M, at), as<T>(tensor.r, at),
                             as<T>(tensor.start, at)};
        if constexpr (half) {
            widen(H(), as<uint16_t>(tensor.grad, at), widened, n);
            t.grad = widened;
            if (pass == OBSERVE) follow(H(), as<uint16_t>(tensor.param, at), t.mean, n);
        }
        if constexpr (ROUNDED) {
            const Kept kept = {as<uint16_t>(tensor.M, at), as<uint16_t>(tensor.r, at), SPREAD.of + index % CHUNK,
                               chunk_key(uint32_t(tensor.seed), uint64_t(index / CHUNK))};
            if (pass == OBSERVE) {
                sums.add(observe_kept(kept, t, n, k));
            } else {
                move_kept(kept, t, n, k);
            }
        } else if (pass == OBSERVE) {
            sums.add(observe(t, n, k));
        } else {
            move(t, n, k);
        }
        if (block.squares) sums.squares += squares(t, n);
        if constexpr (half)
            if (pass == MOVE) narrow(H(), t.mean, as<uint16_t>(tensor.param, at), n);
    }
    return sums;
}

template <class T>
uint64_t sample(const LearnedTensor& tensor) {
    return sample_of(static_cast<const T*>(tensor.mean), tensor.size);
}

constexpr int WIDE = 1;       // float64
constexpr auto FORMATS = {  // the order of FORMATS in arturo/kernels/native.py
    work<Same, float, false>, work<Same, double, false>, work<Brain, float, false>, work<Half, float, false>,
    work<Same, float, true>,  work<Brain, float, true>,  work<Half, float, true>};

}  // namespace

// format: an entry of FORMATS; pass: 0 observe, 1 move, with the numbers of StepMoves for every tensor. out: LearnedSums per tensor,
// or null. Squares of a mean that is as its last move left it are known; a move that keeps them adds them up, another one does not.
EXPORT void arturo_learned(int32_t format, int32_t pass, int64_t tensors, const LearnedTensor* list, const double* keeps,
                           const double* pulls, const double* lengths, const double* gains, int32_t threads, double* out) {
    const auto function = FORMATS.begin()[format];
    const auto sampled = format == WIDE ? sample<double> : sample<float>;
    std::vector<LearnedSums> own(out ? 0 : tensors);
    LearnedSums* sums = out ? reinterpret_cast<LearnedSums*>(out) : own.data();
    std::vector<Block> blocks;
    std::vector<LearnedSums> parts;
    std::vector<char> adds(tensors);  // squares
    for (int64_t i = 0; i < tensors; ++i) {
        sums[i] = {0, 0, 0, 0, 0, 0, 0};
        const Size* known = list[i].known;
        adds[i] = pass == MOVE ? known != nullptr : !(known && known->squares >= 0 && known->sample == sampled(list[i]));
    }
    int64_t tensor = 0, offset = 0;
    while (tensor < tensors) {
        blocks.clear();
        int64_t entries = 0;
        while (tensor < tensors && int64_t(blocks.size()) < ROUND) {
            const int64_t left = list[tensor].size - offset;
            if (left <= 0) {
                ++tensor;
                offset = 0;
                continue;
            }
            const int64_t size = left < BLOCK ? left : BLOCK;
            if (pass == MOVE)
                blocks.push_back({list + tensor, offset, size, bool(adds[tensor]), keeps[tensor], pulls[tensor], lengths[tensor],
                                  gains[tensor]});
            else
                blocks.push_back({list + tensor, offset, size, bool(adds[tensor]), 0, 0, 0, 0});
            entries += blocks.back().size;
            offset += BLOCK;
        }
        const int64_t count = static_cast<int64_t>(blocks.size());
        parts.resize(blocks.size());
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && entries > 4 * BLOCK)
        for (int64_t j = 0; j < count; ++j) parts[j] = function(Pass(pass), blocks[j]);
        for (int64_t j = 0; j < count; ++j) sums[blocks[j].tensor - list].add(parts[j]);
    }
    for (int64_t i = 0; i < tensors; ++i) {
        if (pass == OBSERVE && !adds[i]) sums[i].squares = list[i].known->squares;
        if (pass == MOVE && adds[i]) *list[i].known = {sums[i].squares, sampled(list[i])};
    }
}

template <class T>
static void pass_tiles(TilePass pass, int64_t matrices, const TiledMatrix* list, int32_t threads, LearnedSums* out) {
    std::vector<std::pair<int64_t, int64_t>> tiles;  // matrix, number in it
    int64_t entries = 0, most = 0;
    for (int64_t i = 0; i < matrices; ++i) {
        for (int64_t j = 0; j < list[i].tiles; ++j) tiles.push_back({i, j});
        entries += list[i].tiles * list[i].height * list[i].width;
        most = std::max(most, buffer_size(list[i]));
    }
    std::vector<LearnedSums> sums(tiles.size());
    const int64_t count = static_cast<int64_t>(tiles.size()), each = 3 * most + PAD;
    if (count <= 1 || entries <= 4 * BLOCK) threads = 1;
    const std::unique_ptr<T[]> buffers(new T[size_t(threads * each)]());  // here: an exception must not leave a thread
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        T* const own = buffers.get() + each * thread_number();
        T* const first = own + (64 - reinterpret_cast<uintptr_t>(own) % 64) % 64 / sizeof(T);
#pragma omp for schedule(dynamic)
        for (int64_t j = 0; j < count; ++j)
            sums[j] = pass_tile(pass, list[tiles[j].first], tiles[j].second, Buffers<T>{first, first + most, first + 2 * most});
    }
    for (int64_t j = 0; j < count; ++j) out[tiles[j].first].add(sums[j]);
}

// wide: float64, not float32; pass: a TilePass. out: LearnedSums per matrix, added to what is there. Returns whether there was
// enough memory; if not, nothing has happened.
EXPORT int32_t arturo_tiles(int32_t wide, int32_t pass, int64_t matrices, const TiledMatrix* list, int32_t threads, double* out) {
    try {
        (wide ? pass_tiles<double> : pass_tiles<float>)(TilePass(pass), matrices, list, threads, reinterpret_cast<LearnedSums*>(out));
    } catch (const std::bad_alloc&) {
        return 0;
    }
    return 1;
}

// columns: one for each parameter, zeros.
EXPORT void arturo_columns(int64_t rows, const StepRow* numbers, const LearnedSums* sums, Column* columns) {
    for (int64_t i = 0; i < rows; ++i) columns[numbers[i].column()] = column_of(numbers[i], sums[i]);
}

// columns: of all parameters; null: made from the sums of these rows. keep to gain: StepMoves, a number for each row.
EXPORT void arturo_settle(int64_t parameters, const Column* columns, int64_t rows, const StepRow* numbers, const LearnedSums* sums,
                          const StepConstants* constants, Learned* known, Outcome* outcome, double* keep, double* pull,
                          double* length, double* gain) {
    std::vector<Column> own;
    if (!columns) {
        own.resize(size_t(parameters));
        arturo_columns(rows, numbers, sums, own.data());
    }
    settle(parameters, columns ? columns : own.data(), rows, numbers, *constants, *known, {keep, pull, length, gain}, *outcome);
}

// For tests: a matrix with padded rows becomes the Q of its QR decomposition.
EXPORT void arturo_orthogonal(int32_t wide, int32_t n, void* matrix) {
    std::vector<int64_t> rows(n);
    std::iota(rows.begin(), rows.end(), int64_t(0));
    if (wide)
        make_orthogonal(static_cast<double*>(matrix), n, rows);
    else
        make_orthogonal(static_cast<float*>(matrix), n, rows);
}
