// aszczepanski/2048: an n-tuple network with expectimax. Options: FILE of the strategy, DEPTH of the search.
#include "main/WebApi.h"
#include "protocol.h"

int main(int argc, char* argv[]) {
    if (argc != 3) return 2;
    setStrategy(argv[1]);
    setUnzip(true);
    setMaxDepth(atoi(argv[2]));
    setMaxTime(0);
    setEvalMultithreading(false);
    if (!loadTuplesDescriptor()) return 1;
    initializeTables();
    initializeEvaluator();
    return serve("aszczepanski/2048 " COMMIT, [](const Exponents& exponents) {
        return bestAction(GameState(first_cell_lowest(exponents)));
    });
}
