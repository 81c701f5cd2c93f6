// Cases that fail, that crash and that pass.
#include "cases.h"

TEST(first_fails) { std::exit(3); }

TEST(second_crashes) { raise(SIGSEGV); }

TEST(third_holds) { std::puts("reached"); }

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
