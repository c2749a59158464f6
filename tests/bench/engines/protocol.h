// The engine's side of docs/reference/engines.md, for adapters of other programs.
#pragma once

#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>

using Exponents = std::array<int, 16>;  // row by row from the top left

// A board with 4 bits a cell, the first cell in the lowest ones.
inline uint64_t first_cell_lowest(const Exponents& exponents) {
    uint64_t board = 0;
    for (int cell = 15; cell >= 0; --cell) board = board << 4 | static_cast<uint64_t>(exponents[cell]);
    return board;
}

// A board with 4 bits a cell, the first cell in the highest ones.
inline uint64_t first_cell_highest(const Exponents& exponents) {
    uint64_t board = 0;
    for (int exponent : exponents) board = board << 4 | static_cast<uint64_t>(exponent);
    return board;
}

// Standard output before `main`. From then on the program prints to standard error.
static FILE* const answers = [] {
    FILE* file = fdopen(dup(1), "w");
    dup2(2, 1);
    return file;
}();

// Answers until the input ends. `choose` returns 0 up, 1 down, 2 left or 3 right.
template <typename Choose>
int serve(const std::string& name, Choose choose) {
    std::string line, word;
    while (std::getline(std::cin, line)) {
        std::istringstream words(line);
        words >> word;
        if (word == "tape2048") fprintf(answers, "engine %s batch=64\n", name.c_str());
        while (word == "move" && words >> line) {
            Exponents exponents;
            for (int cell = 0; cell < 16; ++cell) exponents[cell] = std::stoi(line.substr(cell, 1), nullptr, 16);
            int move = choose(exponents);
            fprintf(answers, "%c%s", move < 0 ? '-' : "UDLR"[move], words.peek() == EOF ? "\n" : "");
        }
        fflush(answers);
    }
    return 0;
}
