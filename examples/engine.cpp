// An engine for tape2048, in C++: the move with the most points and empty cells.
//
//     g++ -O2 -o engine engine.cpp
//     tape2048 player eval exec:./engine --games 100
//
// It reads boards as 16 hexadecimal digits, the exponents of the tiles row by row, and prints moves.
#include <algorithm>
#include <array>
#include <iostream>
#include <sstream>
#include <string>

using Board = std::array<int, 16>;

// The i-th cell of a line, counted from the edge to which a move slides it.
int cell(int move, int line, int i) {
    if (move & 1) i = 3 - i;
    return move < 2 ? 4 * i + line : 4 * line + i;
}

// The value of a move: its points, and 100 for each empty cell; -1 if no tile moves.
int value(const Board& board, int move) {
    Board after{};
    int points = 0;
    for (int line = 0; line < 4; ++line) {
        int next = 0, last = 0;  // the next free place, and the tile before it if it may merge
        for (int i = 0; i < 4; ++i) {
            int tile = board[cell(move, line, i)];
            if (tile == 0) continue;
            if (tile == last) {
                after[cell(move, line, next - 1)] = tile + 1;
                points += 2 << tile;
                last = 0;
            } else {
                after[cell(move, line, next++)] = last = tile;
            }
        }
    }
    return after == board ? -1 : points + 100 * static_cast<int>(std::count(after.begin(), after.end(), 0));
}

int main() {
    std::string line, word;
    while (std::getline(std::cin, line)) {
        std::istringstream words(line);
        words >> word;
        if (word == "tape2048") std::cout << "engine example-cpp 1 batch=64" << std::endl;
        if (word != "move") continue;
        while (words >> word) {
            Board board;
            for (int i = 0; i < 16; ++i) board[i] = std::stoi(word.substr(i, 1), nullptr, 16);
            int values[4];
            for (int move = 0; move < 4; ++move) values[move] = value(board, move);
            std::cout << "UDLR"[std::max_element(values, values + 4) - values];
        }
        std::cout << std::endl;  // with a flush: the recorder waits for this line
    }
}
