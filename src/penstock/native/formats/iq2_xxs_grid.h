// The codebook of IQ2_XXS: 256 vectors of eight magnitudes from {8, 25, 43}.
#pragma once

#include <array>

#include "../api.h"

namespace iq2_xxs {

// Each vector as a number in base three, first component least significant.
constexpr std::uint16_t CODES[256] = {
    0, 2, 4, 6, 8, 10, 12, 18, 20, 24, 26, 28, 30, 36, 42, 46,
    48, 54, 56, 62, 74, 82, 84, 90, 94, 108, 138, 150, 162, 164, 182, 218,
    244, 246, 252, 262, 264, 270, 272, 276, 288, 298, 300, 306, 318, 324, 326, 330,
    342, 356, 376, 378, 388, 412, 414, 432, 462, 480, 486, 490, 492, 498, 510, 514,
    516, 522, 524, 546, 570, 594, 650, 660, 730, 732, 738, 748, 756, 774, 786, 792,
    796, 810, 816, 828, 846, 854, 864, 912, 922, 972, 978, 990, 994, 1006, 1026, 1068,
    1100, 1134, 1148, 1216, 1218, 1224, 1242, 1270, 1296, 1300, 1368, 1414, 1458, 1460, 1466, 1488,
    1504, 1512, 1514, 1564, 1572, 1620, 1622, 1702, 1704, 1710, 1728, 1742, 1782, 1810, 1830, 1926,
    1950, 1962, 2010, 2136, 2188, 2190, 2196, 2202, 2206, 2208, 2214, 2220, 2228, 2232, 2242, 2244,
    2250, 2268, 2286, 2314, 2322, 2326, 2350, 2358, 2382, 2390, 2400, 2430, 2436, 2448, 2484, 2500,
    2522, 2532, 2592, 2674, 2676, 2682, 2700, 2704, 2754, 2796, 2800, 2810, 2866, 2898, 2916, 2922,
    2926, 2932, 2934, 2970, 2976, 3000, 3026, 3072, 3142, 3222, 3224, 3248, 3322, 3360, 3402, 3412,
    3418, 3450, 3510, 3570, 3648, 3654, 3672, 3696, 3726, 3766, 3822, 3852, 3888, 3892, 3978, 3980,
    4026, 4160, 4374, 4376, 4382, 4402, 4430, 4458, 4470, 4482, 4546, 4618, 4620, 4626, 4630, 4644,
    4662, 4698, 4730, 4764, 4786, 4806, 4824, 4862, 4944, 5032, 5106, 5112, 5124, 5130, 5176, 5198,
    5238, 5296, 5346, 5366, 5376, 5464, 5644, 5688, 5834, 5868, 5890, 5920, 5994, 6090, 6354, 6402,
};

constexpr int component(int vector, int place) {
    int code = CODES[vector];
    for (int i = 0; i < place; i++) code /= 3;
    return code % 3 == 0 ? 8 : code % 3 == 1 ? 25 : 43;
}

// Signs of eight weights by their seven sign bits, as ±1: the eighth makes the number of minus signs even.
constexpr int sign(int bits, int place) {
    int minus = 0;
    for (int i = 0; i < 7; i++) minus += bits >> i & 1;
    return (place < 7 ? bits >> place & 1 : minus & 1) ? -1 : 1;
}

// N vectors of eight values.  Split order has those at 0, 2, 4 and 6 first.
template <class T, int N>
constexpr std::array<T, N * 8> table(int (*value)(int vector, int place), bool split) {
    std::array<T, N * 8> out{};
    for (int i = 0; i < N * 8; i++) out[i] = static_cast<T>(value(i / 8, split ? i % 4 * 2 + i % 8 / 4 : i % 8));
    return out;
}

// Vectors as two bits for each component, the first one lowest: the digits of their codes.
constexpr std::array<std::uint16_t, 256> packed() {
    std::array<std::uint16_t, 256> out{};
    for (int i = 0; i < 256; i++)
        for (int place = 0, code = CODES[i]; place < 8; place++, code /= 3)
            out[i] = static_cast<std::uint16_t>(out[i] | code % 3 << 2 * place);
    return out;
}

alignas(64) inline constexpr auto PACKED = packed();
alignas(64) inline constexpr auto GRID = table<std::uint8_t, 256>(component, false);
alignas(64) inline constexpr auto SIGNS = table<std::int8_t, 128>(sign, false);
alignas(64) inline constexpr auto SPLIT_GRID = table<std::int16_t, 256>(component, true);
alignas(64) inline constexpr auto SPLIT_SIGNS = table<std::int16_t, 128>(sign, true);

}  // namespace iq2_xxs
