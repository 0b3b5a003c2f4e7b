// What barrier.cuh does in PTX.

template <int COUNT> void first_threads_sync() { meet(named[1], 0, COUNT); }
