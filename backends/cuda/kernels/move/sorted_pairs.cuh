// An index and its place, as sort_rows.cu writes them.

#pragma once

struct alignas(8) Pair {
    int index, place;
};
