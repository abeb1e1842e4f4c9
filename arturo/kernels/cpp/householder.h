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
#include "products.h"

namespace {

constexpr int PANEL = PAD;

struct Arrangement {
    std::vector<int64_t> rows, columns;
};

// The order in which a basis is refreshed, see arranged of arturo/kronecker.py.
template <class T>
INLINE Arrangement arranged(const T* factor, const T* Q, int n) {
    Arrangement order = {std::vector<int64_t>(n), std::vector<int64_t>(n)};
    std::vector<char> reached(n), others(n);  // rows that a gradient has reached; columns that have something there
    const auto variance = [=](int64_t i) { return factor[i * (n + 1)]; };
    for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n && !reached[i]; ++j) reached[i] = Q[i * n + j] != T(0) && variance(j) > T(0);
        for (int64_t j = 0; j < n && reached[i]; ++j) others[j] |= Q[i * n + j] != T(0);
        order.rows[i] = order.columns[i] = i;
    }
    std::stable_partition(order.rows.begin(), order.rows.end(), [&](int64_t i) { return reached[i] != 0; });
    std::stable_sort(order.columns.begin(), order.columns.end(), [&](int64_t i, int64_t j) {
        return others[i] != others[j] ? others[i] > others[j] : variance(i) > variance(j);
    });
    return order;
}

// ``to``, with padded rows: the factor by its largest diagonal entry, plus ``ridge`` I, columns in this ``order``.
template <class T>
INLINE void ridged(const T* factor, int n, T ridge, const int64_t* order, T* to) {
    T largest = factor[0];
    for (int64_t i = 1; i < n; ++i) largest = std::max(largest, factor[i * (n + 1)]);
    for (int i = 0; i < n; ++i) {
        const T* __restrict from_ = factor + int64_t(i) * n;
        T* __restrict to_ = to + i * padded(n);
        for (int j = 0; j < n; ++j) {
            const T scaled = largest > 0 ? from_[order[j]] / largest : from_[order[j]];
            to_[j] = order[j] == i ? scaled + ridge : scaled;
        }
    }
}

template <class T>
struct Panel {
    const T* V;  // rows from the panel's first on, 1 on the diagonal and 0 above it
    T factor[PANEL][PANEL];  // -T^T, lower triangular
};

// x[rows][columns] -= V op(T) V^T x. Columns come in whole panels; ``work`` has 2 PANEL rows of as many.
template <class T>
INLINE void reflect(const Panel<T>& panel, bool transposed, int rows, const Rows<T>& x, int columns, T* work) {
    T* const product = work + PANEL * columns;
    const T* const factor = panel.factor[0];
    multiply<T>(PANEL, columns, rows, {panel.V, 1, PANEL}, {x.at, x.stride}, {work, columns});
    multiply<T>(PANEL, columns, PANEL, transposed ? Strided<T>{factor, PANEL, 1} : Strided<T>{factor, 1, PANEL}, work, product);
    multiply<T>(rows, columns, PANEL, {panel.V, PANEL, 1}, {product, columns}, x, true);
}

// The reflections of a panel, in place: V, and -T^T.
template <class T>
INLINE void factorise(T* V, int rows, T (*factor)[PANEL]) {
    constexpr int CHAINS = 4;  // sums that do not wait for each other
    for (int c = 0; c < PANEL; ++c) {
        T chains[CHAINS][PANEL] = {}, w[PANEL], step[PANEL];
        int i = c + 1;
        for (; i + CHAINS <= rows; i += CHAINS)  // what is below the diagonal times all columns: itself, what is left, V
            for (int l = 0; l < CHAINS; ++l) {
                const T* __restrict row = V + (i + l) * PANEL;
                const T x = row[c];
#pragma omp simd
                for (int j = 0; j < PANEL; ++j) chains[l][j] += x * row[j];
            }
        for (; i < rows; ++i) {
            const T* __restrict row = V + i * PANEL;
            const T x = row[c];
#pragma omp simd
            for (int j = 0; j < PANEL; ++j) chains[0][j] += x * row[j];
        }
        T* const top = V + c * PANEL;
#pragma omp simd
        for (int j = 0; j < PANEL; ++j) w[j] = (chains[0][j] + chains[1][j]) + (chains[2][j] + chains[3][j]);
        const T below = w[c], alpha = top[c];
        T tau = 0, scale = 0;
        if (below > 0) {
            const T norm = std::sqrt(alpha * alpha + below), beta = alpha < 0 ? norm : -norm;
            scale = T(1) / (alpha - beta);
            tau = (beta - alpha) / beta;
        }
#pragma omp simd
        for (int j = 0; j < PANEL; ++j) w[j] = top[j] + scale * w[j];  // v^T of all columns; v is 1 on the diagonal
        for (int j = 0; j < PANEL; ++j) {
            step[j] = j > c ? tau * w[j] : T(0);
            top[j] -= step[j];
        }
        top[c] = 1;
        for (i = c + 1; i < rows; ++i) {
            T* __restrict row = V + i * PANEL;
            const T v = scale * row[c];
#pragma omp simd
            for (int j = 0; j < PANEL; ++j) row[j] -= v * step[j];
            row[c] = v;
        }
        T* __restrict column = factor[c];  // of -T: -tau, and above it tau T w
        for (int j = 0; j < PANEL; ++j) column[j] = 0;
        for (int m = 0; m < c; ++m) {
            const T x = -tau * w[m];
#pragma omp simd
            for (int j = 0; j < PANEL; ++j) column[j] += x * factor[m][j];
        }
        column[c] = -tau;
    }
}

// A, n x n with padded rows, becomes Q, by reflections of its rows in this order.
template <class T>
INLINE void orthogonal(T* A, int n, const std::vector<int64_t>& order) {
    const int side = int(padded(n)), panels = side / PANEL;
    std::vector<T> work(size_t(side) * side), stored(size_t(side) * side), both(size_t(2 * PANEL) * side);
    std::vector<Panel<T>> list(panels);
    for (int i = 0; i < n; ++i) std::copy_n(A + order[i] * side, n, work.begin() + int64_t(i) * side);
    for (int number = 0; number < panels; ++number) {
        const int k = number * PANEL, rows = side - k;
        T *V = stored.data() + size_t(side) * k, *corner = work.data() + size_t(k) * side + k;
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j < PANEL; ++j) V[i * PANEL + j] = corner[size_t(i) * side + j];
        factorise(V, rows, list[number].factor);
        for (int i = 0; i < PANEL; ++i)
            for (int j = i + 1; j < PANEL; ++j) V[i * PANEL + j] = 0;  // of R, which nobody asks for
        list[number].V = V;
        if (rows > PANEL) reflect<T>(list[number], true, rows, {corner + PANEL, side}, rows - PANEL, both.data());
    }
    for (int i = 0; i < side; ++i)
        for (int j = 0; j < side; ++j) work[size_t(i) * side + j] = i == j;
    for (int number = panels - 1; number >= 0; --number) {
        const int k = number * PANEL, rows = side - k;
        reflect<T>(list[number], false, rows, {work.data() + size_t(k) * side + k, side}, rows, both.data());
    }
    for (int i = 0; i < n; ++i) std::copy_n(work.begin() + int64_t(i) * side, side, A + order[i] * side);
}

}  // namespace
