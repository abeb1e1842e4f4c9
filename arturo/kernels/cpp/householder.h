// What a new basis needs besides products, see next_basis of arturo/kronecker.py: a factor with its ridge and sorted columns, and
// Q of a QR decomposition.
//
// Q of the QR decomposition of a small square matrix by Householder's reflections, with LAPACK's signs. A thread takes a whole
// matrix: LAPACK's own threads have little to do on a side of 128, and torch takes a batch one by one.
//
// PANEL columns at a time: the reflections of a panel are found within it, then applied to the rest together as
// I - V T V^T (Schreiber and Van Loan's compact form), for which two products are needed. Sides are padded with zeros to
// whole panels; a column of zeros is reflected by the unit matrix.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "chunk.h"

namespace {

constexpr int PANEL = 16;

// ``to``: the factor by its largest diagonal entry, plus ``ridge`` I, columns in the ``order`` of their diagonal entries.
template <class T>
INLINE void ridged(const T* factor, int n, T ridge, T* to, int64_t* order) {
    std::iota(order, order + n, int64_t(0));
    const auto variance = [=](int64_t i) { return factor[i * (n + 1)]; };
    std::stable_sort(order, order + n, [=](int64_t i, int64_t j) { return variance(i) > variance(j); });
    const T largest = variance(order[0]);
    for (int i = 0; i < n; ++i) {
        const T* __restrict from_ = factor + int64_t(i) * n;
        T* __restrict to_ = to + int64_t(i) * n;
        for (int j = 0; j < n; ++j) {
            const T scaled = largest > 0 ? from_[order[j]] / largest : from_[order[j]];
            to_[j] = order[j] == i ? scaled + ridge : scaled;
        }
    }
}

template <class T>
struct Panel {  // V: rows from the panel's first on, 1 on the diagonal and 0 above it
    const T* V;
    T factor[PANEL][PANEL];  // T, upper triangular
};

// x[rows][columns] -= V op(T) V^T x, with ``stride`` entries from one row to the next. Columns come in whole panels.
template <bool TRANSPOSED, class T>
INLINE void reflect(const Panel<T>& panel, int rows, T* x, int columns, int stride) {
    for (int begin = 0; begin < columns; begin += PANEL) {
        T W[PANEL][PANEL] = {}, TW[PANEL][PANEL] = {};
        for (int i = 0; i < rows; ++i) {
            const T *__restrict v = panel.V + i * PANEL, *__restrict from = x + int64_t(i) * stride + begin;
            for (int p = 0; p < PANEL; ++p) {
#pragma omp simd
                for (int j = 0; j < PANEL; ++j) W[p][j] += v[p] * from[j];
            }
        }
        for (int p = 0; p < PANEL; ++p)
            for (int l = TRANSPOSED ? 0 : p; l < (TRANSPOSED ? p + 1 : PANEL); ++l) {
                const T factor = TRANSPOSED ? panel.factor[l][p] : panel.factor[p][l];
#pragma omp simd
                for (int j = 0; j < PANEL; ++j) TW[p][j] += factor * W[l][j];
            }
        for (int i = 0; i < rows; ++i) {
            const T* __restrict v = panel.V + i * PANEL;
            T* __restrict to = x + int64_t(i) * stride + begin;
            T sum[PANEL];
#pragma omp simd
            for (int j = 0; j < PANEL; ++j) sum[j] = to[j];
            for (int p = 0; p < PANEL; ++p) {
#pragma omp simd
                for (int j = 0; j < PANEL; ++j) sum[j] -= v[p] * TW[p][j];
            }
#pragma omp simd
            for (int j = 0; j < PANEL; ++j) to[j] = sum[j];
        }
    }
}

// The reflections of a panel, in place: V, and T.
template <class T>
INLINE void factorise(T* V, int rows, T (*factor)[PANEL]) {
    for (int c = 0; c < PANEL; ++c) {
        T below = 0, w[PANEL] = {};
        for (int i = c + 1; i < rows; ++i) below += V[i * PANEL + c] * V[i * PANEL + c];
        const T alpha = V[c * PANEL + c];
        T tau = 0;
        if (below > 0) {
            const T norm = std::sqrt(alpha * alpha + below), beta = alpha < 0 ? norm : -norm, scale = T(1) / (alpha - beta);
            tau = (beta - alpha) / beta;
            for (int i = c + 1; i < rows; ++i) V[i * PANEL + c] *= scale;
        } else {
            for (int i = c + 1; i < rows; ++i) V[i * PANEL + c] = 0;
        }
        V[c * PANEL + c] = 1;
        for (int i = c; i < rows; ++i) {  // v^T of all columns: what is left of the matrix beyond c, V before it
            const T v = V[i * PANEL + c];
            const T* __restrict row = V + i * PANEL;
#pragma omp simd
            for (int j = 0; j < PANEL; ++j) w[j] += v * row[j];
        }
        T step[PANEL];
        for (int j = 0; j < PANEL; ++j) step[j] = j > c ? tau * w[j] : T(0);
        for (int i = c; i < rows; ++i) {
            const T v = V[i * PANEL + c];
            T* __restrict row = V + i * PANEL;
#pragma omp simd
            for (int j = 0; j < PANEL; ++j) row[j] -= v * step[j];
        }
        for (int l = 0; l < PANEL; ++l) factor[l][c] = 0;
        for (int l = 0; l < c; ++l)
            for (int m = l; m < c; ++m) factor[l][c] -= tau * factor[l][m] * w[m];
        factor[c][c] = tau;
    }
}

// A, n x n, becomes Q.
template <class T>
INLINE void orthogonal(T* A, int n) {
    const int padded = (n + PANEL - 1) / PANEL * PANEL, panels = padded / PANEL;
    std::vector<T> work(size_t(padded) * padded), stored(size_t(padded) * padded);
    std::vector<Panel<T>> list(panels);
    for (int i = 0; i < n; ++i)
        for (int j = 0; j < n; ++j) work[size_t(i) * padded + j] = A[size_t(i) * n + j];
    for (int number = 0; number < panels; ++number) {
        const int k = number * PANEL, rows = padded - k;
        T *V = stored.data() + size_t(padded) * k, *corner = work.data() + size_t(k) * padded + k;
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j < PANEL; ++j) V[i * PANEL + j] = corner[size_t(i) * padded + j];
        factorise(V, rows, list[number].factor);
        for (int i = 0; i < PANEL; ++i)
            for (int j = i + 1; j < PANEL; ++j) V[i * PANEL + j] = 0;  // of R, which nobody asks for
        list[number].V = V;
        reflect<true>(list[number], rows, corner + PANEL, rows - PANEL, padded);
    }
    for (int i = 0; i < padded; ++i)
        for (int j = 0; j < padded; ++j) work[size_t(i) * padded + j] = i == j;
    for (int number = panels - 1; number >= 0; --number) {
        const int k = number * PANEL, rows = padded - k;
        reflect<false>(list[number], rows, work.data() + size_t(k) * padded + k, rows, padded);
    }
    for (int i = 0; i < n; ++i)
        for (int j = 0; j < n; ++j) A[size_t(i) * n + j] = work[size_t(i) * padded + j];
}

}  // namespace
