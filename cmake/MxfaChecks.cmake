# The checks of the sources themselves (tools/check), as tests, and the tests of those checks.
find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)
include(MxfaHeaderCheck)
mxfa_check_project_headers()

foreach(check format hygiene includes lengths named python words)
  add_test(NAME checks/${check}
           COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/check ${check})
  set_tests_properties(checks/${check} PROPERTIES LABELS quick TIMEOUT 120)
endforeach()
file(GLOB check_tests CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/tests/checks
     ${PROJECT_SOURCE_DIR}/tests/checks/*_test.py)
foreach(file IN LISTS check_tests)
  string(REPLACE "_test.py" "" name ${file})
  add_test(NAME checks/${name}_test
           COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/checks/${file})
  set_tests_properties(checks/${name}_test PROPERTIES LABELS quick TIMEOUT 120)
endforeach()
