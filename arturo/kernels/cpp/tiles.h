// The passes over the tiles of a turned matrix. A thread takes a tile through a whole pass, in buffers that stay in its cache:
//
// observe: refresh the bases if the tile is due; turn the gradient, G <- Q_L^T G Q_R; the innovation E = G - M moves noise, factors
//          and filter;
// move:    turn the step back, step = Q_L (M / s) Q_R^T, and move the mean by it.
//
// The matrix lies row by row, everything that is kept in the basis tile after tile. arturo/kernels/adaptive/tiles.py is the same
// in tensor operations.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "adaptive.h"
#include "chunk.h"
#include "formulas.h"
#include "householder.h"
#include "products.h"

namespace {

struct TiledMatrix {  // and the numbers of its step; packed by arturo/kernels/adaptive/native_tiles.py
    void *grad, *mean, *M, *r;
    void *L, *Q_L, *R, *Q_R;  // null: this side does not turn
    double* mean_s;           // per tile
    int64_t tiles, columns, height, width;        // tiles in all, in a row of the grid; entries of a tile
    int64_t due, due_every, counted, counted_every;  // the first tile whose bases are refreshed, whose factors follow; and others
    double ridge, factor_weight, gain, share, weight, eps, sure, floor, freedom, sign, limit, keep, pull, length;
};

template <class T>
struct Tile {
    T *mean, *M, *r, *turned;  // mean, grad: at its first entry; the next row is ``stride`` entries further
    const T* grad;
    int64_t height, width, stride;
};

// Ask for memory that is needed soon: a tile's rows are short, and the processor does not guess where the next one lies.
template <class T>
INLINE void fetch(const T* from, int64_t entries) {
    constexpr int64_t LINE = 64 / sizeof(T);
    for (int64_t j = 0; j < entries; j += LINE) PREFETCH(from + j);
}

constexpr int64_t AHEAD = 8;  // rows

// Gradients to padded rows of ``to``. Returns whether none is missing, and adds up the squares of the mean.
template <class T>
INLINE bool pack_tile(const Tile<T>& t, T limit, T* to, LearnedSums& sums) {
    double squares = 0;
    bool all = true;
    for (int64_t i = 0; i < t.height; ++i) {
        const T *__restrict grad_ = t.grad + i * t.stride, *__restrict mean_ = t.mean + i * t.stride;
        T* __restrict turned_ = to + i * padded(t.width);
        if (i + AHEAD < t.height) {
            fetch(grad_ + AHEAD * t.stride, t.width);
            fetch(mean_ + AHEAD * t.stride, t.width);
        }
        for (int64_t begin = 0; begin < t.width; begin += CHUNK) {
            const int n = int(t.width - begin < CHUNK ? t.width - begin : CHUNK);
            T sum = 0;
            int unseen = 0;
#pragma omp simd reduction(+ : sum) reduction(| : unseen)
            for (int j = 0; j < n; ++j) {
                const T g = grad_[begin + j], m = mean_[begin + j];
                turned_[begin + j] = g;
                sum += m * m;
                unseen |= !(std::fabs(g) <= limit);
            }
            squares += double(sum);
            all = all && unseen == 0;
        }
    }
    sums.squares = squares;
    if (!all) sums.missing = double(t.height * t.width);
    return all;
}

// Noise of a tile that was seen; the innovation replaces the turned gradient. Returns the sum of s without its floor.
template <bool LATE, class T>
INLINE double learn_tile(const Tile<T>& t, int64_t size, const LearnedNumbers<T>& numbers) {
    const LearnedNumbers<T> k = numbers;
    double sum = 0;
    for (int64_t begin = 0; begin < size; begin += CHUNK) {
        const int n = int(size - begin < CHUNK ? size - begin : CHUNK);
        const T* __restrict M_ = t.M + begin;
        T *__restrict turned_ = t.turned + begin, *__restrict r_ = t.r + begin;
        T S = 0;
#pragma omp simd reduction(+ : S)
        for (int i = 0; i < n; ++i) {
            const T M = M_[i], E = k.sign * turned_[i] - M, r = newer<LATE>(r_[i], M + k.gain * E, E, k);
            r_[i] = r;
            turned_[i] = E;
            S += noise_scale(r, k.eps);
        }
        sum += double(S);
    }
    return sum;
}

template <class T>
INLINE double sum_of_s(const Tile<T>& t, int64_t size, T eps) {
    double sum = 0;
    for (int64_t i = 0; i < size; ++i) sum += double(noise_scale(t.r[i], eps));
    return sum;
}

// Sums of s, which has the floor, and of M^2 / s, M E / s, E^2 / s.
template <class T>
INLINE LearnedSums tile_sums(const Tile<T>& t, int64_t size, T eps, T floor) {
    LearnedSums sums = {0, 0, 0, 0, 0, 0, 0};
    for (int64_t begin = 0; begin < size; begin += CHUNK) {
        const int n = int(size - begin < CHUNK ? size - begin : CHUNK);
        const T *__restrict M_ = t.M + begin, *__restrict r_ = t.r + begin, *__restrict E_ = t.turned + begin;
        T S = 0, MM = 0, ME = 0, EE = 0;
#pragma omp simd reduction(+ : S, MM, ME, EE)
        for (int i = 0; i < n; ++i) {
            const T M = M_[i], E = E_[i], s = noise_scale(r_[i], eps) + floor, inverse = T(1) / s;
            S += s;
            MM += M * inverse * M;
            ME += M * inverse * E;
            EE += E * inverse * E;
        }
        sums.add({0, double(S), double(MM), double(ME), double(EE), 0, 0});
    }
    return sums;
}

// M += gain E.
template <class T>
INLINE void filter_tile(const Tile<T>& t, int64_t size, T gain) {
    const T* __restrict E_ = t.turned;
    T* __restrict M_ = t.M;
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) M_[i] += gain * E_[i];
}

// M / s to padded rows of ``to``.
template <class T>
INLINE void scale_tile(const Tile<T>& t, T eps, T floor, T* to) {
    for (int64_t i = 0; i < t.height; ++i) {
        const T *__restrict M_ = t.M + i * t.width, *__restrict r_ = t.r + i * t.width;
        T* __restrict to_ = to + i * padded(t.width);
#pragma omp simd
        for (int64_t j = 0; j < t.width; ++j) to_[j] = M_[j] / (noise_scale(r_[j], eps) + floor);
    }
}

template <class T>
INLINE void shift_tile(const Tile<T>& t, const T* step, T keep, T pull, T length) {
    for (int64_t i = 0; i < t.height; ++i) {
        const T* __restrict step_ = step + i * padded(t.width);
        T* __restrict mean_ = t.mean + i * t.stride;
#pragma omp simd
        for (int64_t j = 0; j < t.width; ++j) mean_[j] = moved(mean_[j], mean_[j], step_[j], keep, pull, length);
    }
}

// To and from padded rows.
template <class T>
INLINE void load(const T* from, int64_t rows, int64_t columns, T* to) {
    const int64_t stride = padded(columns);
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) to[i * stride + j] = from[i * columns + j];
        for (int64_t j = columns; j < stride; ++j) to[i * stride + j] = 0;
    }
}

// The columns of ``from`` to padded rows of ``to``.
template <class T>
INLINE void load_transposed(const T* from, int64_t rows, int64_t columns, T* to) {
    const int64_t stride = padded(rows);
    for (int64_t begin = 0; begin < columns; begin += PAD) {
        const int64_t end = std::min<int64_t>(begin + PAD, columns);
        for (int64_t i = 0; i < rows; ++i) {
            const T* __restrict from_ = from + i * columns;
            for (int64_t j = begin; j < end; ++j) to[j * stride + i] = from_[j];
        }
        for (int64_t j = begin; j < end; ++j) std::fill(to + j * stride + rows, to + (j + 1) * stride, T(0));
    }
}

template <class T>
INLINE void store(const T* from, int64_t rows, int64_t columns, T* to) {
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) to[i * columns + j] = from[i * padded(columns) + j];
}

template <class T>
struct Buffers {
    T *a, *b, *c;
};

// Entries of a buffer: it holds a tile, or its transpose, or a factor.
inline int64_t buffer_size(const TiledMatrix& m) {
    int64_t size = m.height * padded(m.width);
    if (m.Q_L) size = std::max({size, m.width * padded(m.height), m.height * padded(m.height)});
    if (m.Q_R) size = std::max(size, m.width * padded(m.width));
    return padded(size);
}

// Q^T X or Q X, and X Q or X Q^T, of what is in the buffer a.
template <class T>
INLINE void turn_tile(const Tile<T>& t, const T* Q_L, const T* Q_R, bool back, Buffers<T>& at) {
    const int h = int(t.height), w = int(t.width);
    if (Q_L) {
        multiply<T>(h, w, h, back ? Strided<T>{Q_L, h, 1} : Strided<T>{Q_L, 1, h}, at.a, at.b);
        std::swap(at.a, at.b);
    }
    if (Q_R) {
        if (back)
            load_transposed(Q_R, w, w, at.c);
        else
            load(Q_R, w, w, at.c);
        multiply<T>(h, w, w, {at.a, padded(w), 1}, at.c, at.b);
        std::swap(at.a, at.b);
    }
}

// One orthogonal iteration of a side of length n, see next_basis of arturo/kronecker.py; what is kept in the basis follows.
template <class T>
INLINE void refresh_side(const Tile<T>& t, bool left, T* factor, T* Q, T ridge, const Buffers<T>& at) {
    const int h = int(t.height), w = int(t.width), n = left ? h : w;
    const int64_t stride = padded(n);
    const Arrangement order = arranged(factor, Q, n);
    ridged(factor, n, ridge, order.columns.data(), at.a);
    multiply<T>(n, n, n, {Q, n, 1}, at.a, at.b);
    orthogonal(at.b, n, order.rows);
    multiply<T>(n, n, n, {Q, 1, n}, at.b, at.c);  // S = Q^T new
    store(at.b, n, n, Q);
    load(factor, n, n, at.a);
    multiply<T>(n, n, n, {at.c, 1, stride}, at.a, at.b);
    multiply<T>(n, n, n, {at.b, stride, 1}, at.c, at.a);
    store(at.a, n, n, factor);
    if (left) {
        load(t.M, h, w, at.a);
        multiply<T>(h, w, h, {at.c, 1, stride}, at.a, at.b);
    } else {
        multiply<T>(h, w, w, {t.M, w, 1}, at.c, at.b);
    }
    store(at.b, h, w, t.M);
    load(t.r, h, w, at.a);
    for (int i = 0; i < h; ++i)
        for (int j = 0; j < w; ++j)
            t.r[int64_t(i) * w + j] = at.a[left ? order.columns[i] * padded(w) + j : i * padded(w) + order.columns[j]];
}

// factor += weight (A B - factor)
template <class T>
INLINE void follow_factor(T* factor, int n, int inner, const Strided<T>& A, const T* B, T* product, T weight) {
    multiply<T>(n, n, inner, A, B, product);
    const T rest = T(1) - weight;
    for (int i = 0; i < n; ++i) {
        const T* __restrict product_ = product + i * padded(n);
        T* __restrict factor_ = factor + int64_t(i) * n;
#pragma omp simd
        for (int j = 0; j < n; ++j) factor_[j] = rest * factor_[j] + weight * product_[j];
    }
}

inline bool takes_turn(int64_t number, int64_t first, int64_t every) { return number >= first && (number - first) % every == 0; }

template <class T>
INLINE LearnedSums observe_tile(Tile<T> t, const TiledMatrix& m, int64_t number, T* L, T* Q_L, T* R, T* Q_R, Buffers<T> at) {
    const LearnedNumbers<T> k(m, m.keep, m.pull, m.length, 0);
    const int h = int(t.height), w = int(t.width);
    const int64_t size = t.height * t.width;
    if (takes_turn(number, m.due, m.due_every)) {
        if (L) refresh_side(t, true, L, Q_L, T(m.ridge), at);
        if (R) refresh_side(t, false, R, Q_R, T(m.ridge), at);
    }
    LearnedSums sums = {0, 0, 0, 0, 0, 0, 0};
    const bool seen = pack_tile(t, k.limit, at.a, sums);
    if (seen) turn_tile(t, Q_L, Q_R, false, at);
    if (!seen)
        std::fill(at.a, at.a + size, T(0));
    else if (padded(w) != w) {
        store(at.a, h, w, at.b);
        std::swap(at.a, at.b);
    }
    const T* const E = t.turned = at.a;
    const double sum = !seen ? sum_of_s(t, size, k.eps) : k.late ? learn_tile<true>(t, size, k) : learn_tile<false>(t, size, k);
    m.mean_s[number] = sum / double(size);
    if (seen && takes_turn(number, m.counted, m.counted_every)) {
        if (L) {
            load_transposed(E, h, w, at.b);
            follow_factor<T>(L, h, w, {E, w, 1}, at.b, at.c, T(m.factor_weight));
        }
        if (R) {
            load(E, h, w, at.b);
            follow_factor<T>(R, w, h, {E, 1, w}, at.b, at.c, T(m.factor_weight));
        }
    }
    const LearnedSums pulls = tile_sums(t, size, k.eps, T(m.floor * m.mean_s[number]));
    const double surprise = pulls.S > 0 ? m.share * pulls.EE / pulls.S : 0;
    const double trust = surprise > 1 ? (m.freedom + 1) / (m.freedom + surprise) : 1, gain = m.gain * trust;
    if (seen) filter_tile(t, size, T(gain));
    return {sums.squares, pulls.S, pulls.MM, pulls.ME, pulls.EE, sums.missing,
            pulls.MM + gain * (2 * pulls.ME + gain * pulls.EE)};
}

template <class T>
INLINE void move_tile(const Tile<T>& t, const TiledMatrix& m, int64_t number, const T* Q_L, const T* Q_R, Buffers<T> at) {
    scale_tile(t, T(m.eps), T(m.floor * m.mean_s[number]), at.a);
    for (int64_t i = 0; i < t.height; ++i) fetch(t.mean + i * t.stride, t.width);
    turn_tile(t, Q_L, Q_R, true, at);
    shift_tile(t, at.a, T(m.keep), T(m.pull), T(m.length));
}

enum TilePass { OBSERVE_TILE, MOVE_TILE };

template <class T>
INLINE LearnedSums tile_pass(TilePass pass, const TiledMatrix& m, int64_t number, const Buffers<T>& at) {
    const int64_t size = m.height * m.width, stride = m.columns * m.width;
    const int64_t first = number / m.columns * m.height * stride + number % m.columns * m.width, here = number * size;
    const auto of_tile = [number](void* factors, int64_t n) { return factors ? static_cast<T*>(factors) + number * n * n : nullptr; };
    const Tile<T> t = {static_cast<T*>(m.mean) + first, static_cast<T*>(m.M) + here, static_cast<T*>(m.r) + here, nullptr,
                       static_cast<const T*>(m.grad) + first, m.height, m.width, stride};
    T *const L = of_tile(m.L, m.height), *const Q_L = of_tile(m.Q_L, m.height);
    T *const R = of_tile(m.R, m.width), *const Q_R = of_tile(m.Q_R, m.width);
    if (pass == OBSERVE_TILE) return observe_tile(t, m, number, L, Q_L, R, Q_R, at);
    move_tile(t, m, number, Q_L, Q_R, at);
    return {0, 0, 0, 0, 0, 0, 0};
}

}  // namespace
