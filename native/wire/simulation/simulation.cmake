# The engine under simulation: a program with the engine's object files, in which the linker redirects
# their system calls to the simulator. docs/decisions/simulation.md describes the purpose.
#
# Not built with a sanitizer: ThreadSanitizer checks real threads, and there is only one here.
# AddressSanitizer adds padding between the static variables, which are copied for each process.
if(TENSORWIRE_SANITIZE)
  return()
endif()
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  message(STATUS "The simulation is not built: it needs g++ (-fno-inline-atomics)")
  return()
endif()
set(simulation ${CMAKE_CURRENT_LIST_DIR})
if(NOT DEFINED simulated_engine)  # .ci/simulate-defects names a copy with a defect
  set(simulated_engine ${wire_sources})
endif()

# The engine's atomic operations become function calls, in which the simulator may switch to another
# thread (atomics.cc).
add_library(simulated_objects OBJECT ${simulated_engine})
target_link_libraries(simulated_objects PUBLIC tensorwire_flags)
list(GET simulated_engine 0 first_source)
get_filename_component(simulated_folder ${first_source} DIRECTORY)
target_include_directories(simulated_objects PUBLIC
  ${simulated_folder} ${simulated_folder}/../include)
set_target_properties(simulated_objects PROPERTIES POSITION_INDEPENDENT_CODE OFF)
target_compile_options(simulated_objects PRIVATE -fno-pie)
target_compile_options(simulated_objects PRIVATE -fno-inline-atomics)
# Assertions are on in every build.
target_compile_options(simulated_objects PRIVATE -UNDEBUG)

add_library(simulation_begin OBJECT ${simulation}/statics_begin.cc)
add_library(simulation_end OBJECT ${simulation}/statics_end.cc)
foreach(mark simulation_begin simulation_end)
  target_link_libraries(${mark} PRIVATE tensorwire_flags)
endforeach()

# The system calls of the engine; system_calls.cc has a __wrap_ for each.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${simulation}/system_calls.txt)
file(STRINGS ${simulation}/system_calls.txt wrapped REGEX "^[^#]")
list(TRANSFORM wrapped PREPEND "-Wl,--wrap=")

file(GLOB simulator_sources CONFIGURE_DEPENDS ${simulation}/*.cc)
list(FILTER simulator_sources EXCLUDE REGEX "statics_(begin|end).cc$")
# The order of the objects determines the sections: the engine's static variables are between two marks.
add_executable(simulate
  $<TARGET_OBJECTS:simulation_begin> $<TARGET_OBJECTS:simulated_objects>
  $<TARGET_OBJECTS:simulation_end> ${simulator_sources})
target_include_directories(simulate PRIVATE
  ${simulation} ${simulation}/../tests ${simulated_folder} ${simulated_folder}/../include)
target_link_libraries(simulate PRIVATE tensorwire_flags Threads::Threads ${CMAKE_DL_LIBS})
target_compile_options(simulate PRIVATE -fno-pie -UNDEBUG)
# The C++ library is linked statically, so that its threads and condition variables are redirected, too.
target_link_options(simulate PRIVATE -no-pie -static-libstdc++ -static-libgcc ${wrapped})

# Tests: fixed seeds; seeds that failed once; a broken invariant is noticed; a seed's trace is the same
# each time.
add_test(NAME simulate COMMAND simulate --seeds 0..1000)
add_test(NAME simulate_kept COMMAND simulate --kept ${simulation}/kept_seeds.txt)
add_test(NAME simulate_broken COMMAND simulate --break 1)
set_tests_properties(simulate_broken PROPERTIES
  PASS_REGULAR_EXPRESSION "SEED=1 at .* has not ended, and its engine has")
add_test(NAME simulate_twice COMMAND simulate --twice 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20)
set_tests_properties(simulate simulate_kept simulate_broken simulate_twice PROPERTIES TIMEOUT ${timeout_s})
add_test(NAME simulate_symbols COMMAND ${CMAKE_COMMAND} -E env
  ${simulation}/check_symbols ${CMAKE_NM} ${simulation}/system_calls.txt $<TARGET_OBJECTS:simulated_objects>
  COMMAND_EXPAND_LISTS)
