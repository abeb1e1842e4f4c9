// One multiplier for all tensors, from the sums of observe: `settle` of arturo/adaptive_step.py for numbers of the host. Some
// hundred operations on a handful of numbers would take longer as tensor operations than a small network's passes.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "adaptive.h"

namespace {

struct StepRow {  // packed by `settle_natively` of arturo/adaptive_step.py
    double least, place, entries, turned, counted;  // place: of the parameter, from 1; counted: not by another process, too
    double lr, decay, gain, share;
    int64_t column() const { return int64_t(place) - 1; }
};

struct Column {  // of one parameter: what is added up over processes, then what all of them know
    double squares, S, N, MM, ME, kept, noise, missing, entries, pulled, fell;
    double least, lr;
};

struct StepConstants {  // made by `constants` of arturo/adaptive_step.py; memory: of the curvature
    double per_lr, most_lr, most_size, exponent, rounding, freedom, fall, most_pull, least_share, window, memory;
};

struct Learned {  // of all tensors together, from step to step: param_groups[0]["curvature"]
    double numerator, denominator, k, level, steps, mark;  // mark: of the parameters that the level is of
};

struct Outcome {  // StepInfo
    double eta, kl, bound, evaluations, active, skipped;
};

struct StepMoves {  // a number for each row: Moves of arturo/kernels/adaptive/__init__.py
    double *keep, *pull, *length, *gain;
};

// NaN stays NaN.
inline double at_most(double x, double most) { return x > most ? most : x; }
inline double at_least(double x, double least) { return x < least ? least : x; }

// `mark_weight` of arturo/surrogates/learned.py: what a parameter's entries count in the mark.
inline double mark_weight(double place) {
    const double turns = place * 0.6180339887498949;
    return 1 + std::floor((turns - std::floor(turns)) * 1048576) / 1048576;
}

inline double noise_level(double gain) { return gain / (2 - gain); }

// Sums such that trust and pull of a parameter follow from them: A = MM + 2 w K ME + (w K)^2 EE, z^2 = share EE / S.
inline Column column_of(const StepRow& row, const LearnedSums& sum) {
    Column column = {};
    if (row.counted > 0) {
        const double on_diagonal = 1 - row.turned;  // tiles have their own trust: their pull is known
        const double EE = on_diagonal * sum.EE;
        column = {sum.squares, sum.S, sum.S * noise_level(row.gain), on_diagonal * sum.MM + sum.pull,
                  row.gain * on_diagonal * sum.ME, row.gain * row.gain * EE, row.share * EE, sum.missing, row.entries,
                  sum.MM, sum.ME, 0, 0};
    }
    column.least = row.least;
    column.lr = row.lr;
    return column;
}

// columns: of all parameters in their order, so that sums do not depend on which kernel took which row.
inline void settle(int64_t parameters, const Column* columns, int64_t n, const StepRow* rows, const StepConstants& c,
                   Learned& known, const StepMoves& moves, Outcome& outcome) {
    double largest = 0;
    for (int64_t i = 0; i < parameters; ++i)
        if (columns[i].entries > 0) largest = std::max(largest, at_most(columns[i].lr, c.most_lr));
    if (!(largest > 0)) largest = 1;  // nothing takes part: of no consequence

    double B = 0, A = 0, N = 0, weighted = 0, fell = 0, pulled = 0, room = 0, skipped = 0, entries = 0, mark = 0;
    std::vector<double> sizes(parameters), parts(parameters), stirs(parameters), trusts(parameters);
    for (int64_t i = 0; i < parameters; ++i) {
        const Column& at = columns[i];
        const double trust = at_most((c.freedom + 1) / (c.freedom + (at.S > 0 ? at.noise / at.S : 0)), 1);
        const double pull = at.MM + trust * (2 * at.ME + trust * at.kept);
        const double own = std::sqrt(at.squares / at_least(at.entries, 1));
        const double size = at_most(at_least(own, at.least), c.most_size);
        const double lr = at.entries > 0 ? at_most(at.lr, c.most_lr) : 0, u = lr / largest;
        sizes[i] = size;
        parts[i] = own > c.most_size ? c.most_size / own : 1;  // size over own size, for large tensors
        stirs[i] = at.N > 0 ? at_least(at_most(c.fall * pull / at.N, 1), 0) : 0;
        trusts[i] = trust;
        B += size * at.S;
        A += size * pull;
        N += size * at.N;
        weighted += size * pull * lr * lr;
        fell += size * u * at.fell;
        pulled += size * u * u * at.pulled;
        room += size * at.entries;
        skipped += at.missing;
        entries += at.entries;
        mark += mark_weight(double(i + 1)) * at.entries;
    }

    const double phi = at_most(at_least(A > 0 ? 1 - N / A : 0, c.least_share), 1), part = std::pow(phi, 2 * c.exponent);
    double k = A > 0 ? std::sqrt(part * B / at_least(A, N)) : 0;
    const bool broken = A != A || B != B;            // weights or state that are not finite: nothing moves
    const bool seen = skipped < entries && !broken;  // nor where everything is missing
    const double now = room > 0 ? B / room : 0;
    if (seen) {
        known.numerator += c.memory * (-known.k * fell - known.numerator);
        known.denominator += c.memory * (known.k * known.k * pulled - known.denominator);
        if (known.mark != mark) known.steps = 0;  // a level belongs to the parameters that it is of
        known.mark = mark;
        known.level += c.window / (known.steps + c.window) * (now - known.level);
        known.steps += 1;
    }
    const bool bends = known.numerator > 0 && known.denominator > 0;
    const double most = bends ? 2 * known.denominator / known.numerator : std::numeric_limits<double>::infinity();
    const double calm = known.level > 0 ? at_most(c.fall * now / known.level, 1) : 1;
    const bool free = k <= most && calm >= 1;
    k = seen ? calm * at_most(k, most) : 0;
    if (entries > 0) known.k = k;

    const double spent = k > 0 ? k * k * A / B : 0;
    for (int64_t i = 0; i < n; ++i) {
        const StepRow& row = rows[i];
        const int64_t at = row.column();
        const double tau = c.per_lr * at_most(row.lr, c.most_lr), reached = tau * std::sqrt(spent);
        const double spread = reached * reached * (phi + (1 - phi) / noise_level(row.gain));
        const double grown = reached > 0 ? at_most(spread, 2 * c.most_pull * reached) * stirs[at] : 0;
        moves.keep[i] = seen ? 1 - row.lr * row.decay : 1;
        moves.pull[i] = (1 - std::sqrt(at_least(1 - grown, 0))) * parts[at];
        moves.length[i] = k > 0 ? tau * k * sizes[at] : 0;
        moves.gain[i] = row.gain * trusts[at];
    }
    outcome = {k > 0 ? 1 / k : 0, 0.5 * c.per_lr / largest * k * k * weighted, 0.5 * c.per_lr * largest * part * B,
               double(entries > 0), double(k > 0 && free && A >= (1 - c.rounding) * N), skipped};
}

}  // namespace
