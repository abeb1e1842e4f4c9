// The passes over memory on the CPU: one call per pass for a whole list of tensors, raw pointers, no torch headers.
//
// The formulas are those of arturo/surrogates/kalman.py and arturo/trust_region.py, line by line. Compiled without
// -ffast-math, which would drop the finiteness test, and without contraction to fused multiply-adds, which would make the
// predicted gradient after b = g - a m differ from g.
//
// Sums are taken over blocks of fixed size and added in order: the same bits for any number of threads.

#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif
#define INLINE static inline __attribute__((always_inline))

namespace {

constexpr int64_t BLOCK = 4096;  // entries; 8 arrays of float32 are 128 KiB
constexpr int FIELDS = 8;

struct Constants {  // mirrored in native.py
    double q, r, rho, rho_lam, nu, floor, a_0, decay, s_w, eta_w, scale, limit;
    int64_t has_floor, consistent, maximize;
};

struct Sums {
    double s_0, s_1, s_2, missing;
};

template <class T>
struct Tensors {  // one block of one parameter
    T* mean;
    const T* grad;
    T *prec, *a, *b, *P_aa, *P_ab, *P_bb;

    Tensors(void* const* p, int64_t offset)
        : mean(static_cast<T*>(p[0]) + offset),
          grad(static_cast<const T*>(p[1]) + offset),
          prec(static_cast<T*>(p[2]) + offset),
          a(static_cast<T*>(p[3]) + offset),
          b(static_cast<T*>(p[4]) + offset),
          P_aa(static_cast<T*>(p[5]) + offset),
          P_ab(static_cast<T*>(p[6]) + offset),
          P_bb(static_cast<T*>(p[7]) + offset) {}
};

template <class T>
INLINE Sums observe_block(const Tensors<T>& t, int64_t n, bool first, const Constants& k) {
    const T q = k.q, r = k.r, q_2 = k.q * k.q, rho_lam = k.rho_lam, decay = k.decay, s_w = k.s_w, eta_w = k.eta_w;
    const T a_0 = k.a_0, limit = k.limit, sign = k.maximize ? -1 : 1;
    const T floor = k.has_floor ? T(k.floor) : -std::numeric_limits<T>::infinity();
    const T inner = T(1) - T(8) * std::numeric_limits<T>::epsilon();
    const T keep_b = first ? 0 : 1;                            // the stored b counts
    const T start_m = first ? (k.consistent ? -a_0 : 0) : 0;   // b_0 = start_g g + start_m m where g is seen
    const T start_g = first ? 1 : 0;
    const T start_unseen = first ? -a_0 : 0;
    double s_0 = 0, s_1 = 0, s_2 = 0, missing = 0;
    T *__restrict a_ = t.a, *__restrict b_ = t.b, *__restrict aa_ = t.P_aa, *__restrict ab_ = t.P_ab, *__restrict bb_ = t.P_bb;
    const T *__restrict mean_ = t.mean, *__restrict grad_ = t.grad, *__restrict prec_ = t.prec;
#pragma omp simd reduction(+ : s_0, s_1, s_2, missing)
    for (int64_t i = 0; i < n; ++i) {
        const T raw = grad_[i];
        const bool seen = std::fabs(raw) <= limit;  // false for NaN too
        const T g = seen ? sign * raw : T(0);
        const T m = mean_[i] * decay;
        const T a_old = a_[i];
        const T b_start = start_g * g + (seen ? start_m : start_unseen) * m;
        const T b_old = keep_b != 0 ? b_[i] : b_start;

        T aa = aa_[i], ab = ab_[i], bb = bb_[i];
        const T det_old = aa * bb - ab * ab;
        const T det = (det_old > 0 ? det_old : T(0)) + q * (aa + bb) + q_2;
        aa += q;
        bb += q;
        const T h = ab + m * aa;
        const T v = r + (h * h + det) / aa;
        const T error = seen ? (g - (a_old * m + b_old)) / v : T(0);
        const T a = a_old + h * error;
        const T b = b_old + (bb + m * ab) * error;
        const T m_det = m * det;
        const T new_aa = seen ? (r * aa + det) / v : aa;
        const T new_bb = seen ? (r * bb + m * m_det) / v : bb;
        T new_ab = seen ? (r * ab - m_det) / v : ab;
        const T inside = std::sqrt(new_aa) * std::sqrt(new_bb) * inner;
        new_ab = new_ab > -inside ? new_ab : -inside;
        new_ab = new_ab < inside ? new_ab : inside;
        a_[i] = a;
        b_[i] = b;
        aa_[i] = new_aa;
        ab_[i] = new_ab;
        bb_[i] = new_bb;

        const T prec = prec_[i];
        const T num = (a * m + b) + rho_lam * m;
        const T A = (a > floor ? a : floor) + rho_lam;
        const T den = s_w * A + eta_w * prec;
        const double x = num / den, u = prec / den;
        const double term = x * x * prec;
        s_0 += term;
        s_1 += term * u;
        s_2 += term * u * u;
        missing += seen ? 0.0 : 1.0;
    }
    return {s_0, s_1, s_2, missing};
}

template <class T>
INLINE Sums probe_block(const Tensors<T>& t, int64_t n, const Constants& k) {
    const T rho_lam = k.rho_lam, decay = k.decay, s_w = k.s_w, eta_w = k.eta_w;
    const T floor = k.has_floor ? T(k.floor) : -std::numeric_limits<T>::infinity();
    double s_0 = 0, s_1 = 0, s_2 = 0;
    const T *__restrict mean_ = t.mean, *__restrict prec_ = t.prec, *__restrict a_ = t.a, *__restrict b_ = t.b;
#pragma omp simd reduction(+ : s_0, s_1, s_2)
    for (int64_t i = 0; i < n; ++i) {
        const T m = mean_[i] * decay, a = a_[i], prec = prec_[i];
        const T num = (a * m + b_[i]) + rho_lam * m;
        const T A = (a > floor ? a : floor) + rho_lam;
        const T den = s_w * A + eta_w * prec;
        const double x = num / den, u = prec / den;
        const double term = x * x * prec;
        s_0 += term;
        s_1 += term * u;
        s_2 += term * u * u;
    }
    return {s_0, s_1, s_2, 0};
}

template <class T>
INLINE Sums move_block(const Tensors<T>& t, int64_t n, const Constants& k) {
    const T rho_lam = k.rho_lam, decay = k.decay, s_w = k.s_w, eta_w = k.eta_w, nu = k.nu, total = k.rho + k.nu;
    const T length = k.scale * k.s_w;
    const T floor = k.has_floor ? T(k.floor) : -std::numeric_limits<T>::infinity();
    double s_0 = 0;
    T *__restrict mean_ = t.mean, *__restrict prec_ = t.prec;
    const T *__restrict a_ = t.a, *__restrict b_ = t.b;
#pragma omp simd reduction(+ : s_0)
    for (int64_t i = 0; i < n; ++i) {
        const T m = mean_[i] * decay, a = a_[i], prec = prec_[i];
        const T num = (a * m + b_[i]) + rho_lam * m;
        const T A = (a > floor ? a : floor) + rho_lam;
        const T x = num / (s_w * A + eta_w * prec);
        mean_[i] = m - length * x;
        prec_[i] = (A + nu * prec) / total;
        s_0 += double(x) * double(x) * prec;
    }
    return {s_0, 0, 0, 0};
}

CLONES Sums observe_f32(const Tensors<float>& t, int64_t n, bool first, const Constants& k) { return observe_block(t, n, first, k); }
CLONES Sums observe_f64(const Tensors<double>& t, int64_t n, bool first, const Constants& k) { return observe_block(t, n, first, k); }
CLONES Sums probe_f32(const Tensors<float>& t, int64_t n, bool, const Constants& k) { return probe_block(t, n, k); }
CLONES Sums probe_f64(const Tensors<double>& t, int64_t n, bool, const Constants& k) { return probe_block(t, n, k); }
CLONES Sums move_f32(const Tensors<float>& t, int64_t n, bool, const Constants& k) { return move_block(t, n, k); }
CLONES Sums move_f64(const Tensors<double>& t, int64_t n, bool, const Constants& k) { return move_block(t, n, k); }

// pointers: FIELDS per tensor, in the order of Tensors; first: one flag per tensor; sums: where each tensor's total goes.
template <class T, class Block>
void run(Block block, int64_t tensors, const int64_t* sizes, void* const* pointers, const uint8_t* first, const Constants& k,
         int threads, Sums* sums) {
    struct Piece {
        int64_t tensor, offset, size;
    };
    std::vector<Piece> pieces;
    for (int64_t i = 0; i < tensors; ++i)
        for (int64_t offset = 0; offset < sizes[i]; offset += BLOCK)
            pieces.push_back({i, offset, sizes[i] - offset < BLOCK ? sizes[i] - offset : BLOCK});
    const int64_t count = static_cast<int64_t>(pieces.size());
    std::vector<Sums> parts(count);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && count > 4)
    for (int64_t j = 0; j < count; ++j) {
        const Piece& piece = pieces[j];
        const Tensors<T> t(pointers + FIELDS * piece.tensor, piece.offset);
        parts[j] = block(t, piece.size, first[piece.tensor] != 0, k);
    }
    for (int64_t i = 0; i < tensors; ++i) sums[i] = {0, 0, 0, 0};
    for (int64_t j = 0; j < count; ++j) {
        Sums& sum = sums[pieces[j].tensor];
        sum.s_0 += parts[j].s_0;
        sum.s_1 += parts[j].s_1;
        sum.s_2 += parts[j].s_2;
        sum.missing += parts[j].missing;
    }
}

}  // namespace

#ifdef _WIN32
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

// kind: 0 observe, 1 probe, 2 move
EXPORT void arturo_pass(int32_t kind, int32_t is_double, int64_t tensors, const int64_t* sizes, void* const* pointers,
                        const uint8_t* first, const Constants* k, int32_t threads, double* out) {
    Sums* sums = reinterpret_cast<Sums*>(out);
    if (is_double) {
        auto block = kind == 0 ? observe_f64 : kind == 1 ? probe_f64 : move_f64;
        run<double>(block, tensors, sizes, pointers, first, *k, threads, sums);
    } else {
        auto block = kind == 0 ? observe_f32 : kind == 1 ? probe_f32 : move_f32;
        run<float>(block, tensors, sizes, pointers, first, *k, threads, sums);
    }
}

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", "Passes over memory, called through ctypes.", -1, nullptr,
                             nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
