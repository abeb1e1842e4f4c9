// Products of small matrices: C = A B, the sums of a block of C in registers. A thread does what comes before and after a product
// while its matrix is in its cache, which a library's batch of products cannot.
//
// B and C lie row by row, each row padded to whole vectors. A is read one number at a time, with any strides, so that it may be
// transposed.

#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "chunk.h"
#include "portable.h"

namespace {

constexpr int PAD = 16;  // entries

constexpr int64_t padded(int64_t n) { return (n + PAD - 1) / PAD * PAD; }

template <class T>
struct Strided {  // a matrix of any layout
    const T* at;
    int64_t row, column;  // entries from one row, one column to the next
};

template <class T>
struct Rows {  // a matrix row by row, each row padded
    T* at;
    int64_t stride;
};

template <bool FUSED, class T>
INLINE T add_product(T a, T b, T sum) {
    if constexpr (FUSED) {
        if constexpr (std::is_same<T, float>::value) return __builtin_fmaf(a, b, sum);
        return __builtin_fma(a, b, sum);
    }
    return sum + a * b;
}

// HEIGHT x WIDTH entries of C.
template <bool FUSED, int HEIGHT, int WIDTH, class T>
INLINE void product_block(int inner, const Strided<T>& A, const Rows<const T>& B, const Rows<T>& C, bool add) {
    T sums[HEIGHT][WIDTH];
    for (int i = 0; i < HEIGHT; ++i)
        for (int j = 0; j < WIDTH; ++j) sums[i][j] = add ? C.at[i * C.stride + j] : T(0);
    for (int k = 0; k < inner; ++k) {
        const T *__restrict a = A.at + k * A.column, *__restrict b = B.at + k * B.stride;
        UNROLL
        for (int i = 0; i < HEIGHT; ++i) {
            const T factor = a[i * A.row];
#pragma omp simd
            for (int j = 0; j < WIDTH; ++j) sums[i][j] = add_product<FUSED>(factor, b[j], sums[i][j]);
        }
    }
    for (int i = 0; i < HEIGHT; ++i)
        for (int j = 0; j < WIDTH; ++j) C.at[i * C.stride + j] = sums[i][j];
}

// WIDTH columns of C; the rows that are left over in blocks of half the height.
template <bool FUSED, int HEIGHT, int WIDTH, class T>
INLINE void product_columns(int rows, int inner, Strided<T> A, const Rows<const T>& B, Rows<T> C, bool add) {
    int i = 0;
    for (; i + HEIGHT <= rows; i += HEIGHT) {
        product_block<FUSED, HEIGHT, WIDTH>(inner, A, B, C, add);
        A.at += HEIGHT * A.row;
        C.at += HEIGHT * C.stride;
    }
    if constexpr (HEIGHT > 1)
        if (i < rows) product_columns<FUSED, HEIGHT / 2, WIDTH>(rows - i, inner, A, B, C, add);
}

template <bool FUSED, int HEIGHT, int WIDTH, class T>
INLINE void product(int rows, int64_t columns, int inner, const Strided<T>& A, const Rows<const T>& B, const Rows<T>& C, bool add) {
    int64_t j = 0;
    for (; j + WIDTH <= columns; j += WIDTH)
        product_columns<FUSED, HEIGHT, WIDTH>(rows, inner, A, {B.at + j, B.stride}, {C.at + j, C.stride}, add);
    if constexpr (WIDTH > PAD)
        for (; j < columns; j += PAD)
            product_columns<FUSED, HEIGHT, PAD>(rows, inner, A, {B.at + j, B.stride}, {C.at + j, C.stride}, add);
}

// With blocks of C that fill the registers.
#define PRODUCT(NAME, TARGET, T, FUSED, HEIGHT, WIDTH)                                                                      \
    TARGET inline void NAME(int rows, int64_t columns, int inner, const Strided<T>& A, const Rows<const T>& B,              \
                            const Rows<T>& C, bool add) {                                                                   \
        product<FUSED, HEIGHT, WIDTH>(rows, columns, inner, A, B, C, add);                                                  \
    }
#ifdef TARGETS
PRODUCT(multiply_v4, TARGET_V4, float, true, 8, 32)
PRODUCT(multiply_v4, TARGET_V4, double, true, 8, 16)
PRODUCT(multiply_v3, TARGET_V3, float, true, 4, 16)
PRODUCT(multiply_v3, TARGET_V3, double, true, 2, 16)
#endif
#ifdef __FP_FAST_FMA
PRODUCT(multiply_plain, , float, true, 4, 16)
PRODUCT(multiply_plain, , double, true, 4, 16)
#else
PRODUCT(multiply_plain, , float, false, 4, 16)
PRODUCT(multiply_plain, , double, false, 2, 16)
#endif
#undef PRODUCT

// C = A B, or C += A B: rows x inner by inner x columns. What is in the padding of B goes to the padding of C.
template <class T>
void multiply(int rows, int64_t columns, int inner, const Strided<T>& A, const Rows<const T>& B, const Rows<T>& C, bool add = false) {
    columns = padded(columns);
#ifdef TARGETS
    static const int level = processor_level();
    if (level >= 4) return multiply_v4(rows, columns, inner, A, B, C, add);
    if (level >= 3) return multiply_v3(rows, columns, inner, A, B, C, add);
#endif
    multiply_plain(rows, columns, inner, A, B, C, add);
}

template <class T>
void multiply(int rows, int64_t columns, int inner, const Strided<T>& A, const T* B, T* C) {
    multiply<T>(rows, columns, inner, A, {B, padded(columns)}, {C, padded(columns)});
}

}  // namespace
