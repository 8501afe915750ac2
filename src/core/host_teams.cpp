// g++ 12 and newer ask their run time, in a target region on the host, for the next team: GOMP_teams4(), which older
// libgomps do not have. A process has one libgomp, the first that was loaded, and PyTorch brings an old one. So
// libflashomp and its kernel libraries have the function themselves. This function asks the process's libgomp for its
// own, and where libgomp has none runs one team, as older versions of g++ do. omp_get_num_teams() is 1 there, and a
// launch of ours shares out its work by that.
#include <dlfcn.h>

// NOLINTNEXTLINE(readability-identifier-naming,bugprone-reserved-identifier): the name is libgomp's.
extern "C" __attribute__((visibility("hidden"))) bool GOMP_teams4(unsigned least, unsigned most, unsigned threads,
                                                                  bool first)
{
    using Teams = bool (*)(unsigned, unsigned, unsigned, bool);
    static const auto of_libgomp = reinterpret_cast<Teams>(dlsym(RTLD_NEXT, "GOMP_teams4"));
    return of_libgomp != nullptr ? of_libgomp(least, most, threads, first) : first;
}
