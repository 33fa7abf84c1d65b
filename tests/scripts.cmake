# SPDX-License-Identifier: Apache-2.0
# What is not a C++ program: headers, symbols, the install tree, bindings, examples, the model.
# A sanitized library cannot be loaded into an ordinary interpreter, so these run on plain builds.
if(FOVEA_SANITIZE)
  return()
endif()
set(_python ${CMAKE_SOURCE_DIR}/.venv/bin/python)
if(NOT EXISTS ${_python})
  set(_python ${Python3_EXECUTABLE})
endif()

fovea_script(headers COMMAND bash tests/headers/check.sh include --require)
fovea_script(dialect COMMAND ${Python3_EXECUTABLE} tests/headers/dialect.py)
fovea_script(symbols COMMAND bash tests/headers/symbols.sh $<TARGET_FILE:fovea> --require)
fovea_script(install COMMAND bash tests/install.sh ${CMAKE_BINARY_DIR})
# PyTorch is a download of gigabytes: its tests run where it is, as on a GPU machine (tests/gpu.sh).
execute_process(COMMAND ${_python} -c "import torch" RESULT_VARIABLE _no_torch OUTPUT_QUIET ERROR_QUIET)
set(_without --ignore=tests/python/test_smollm.py --ignore=tests/python/test_distill.py)
if(_no_torch)
  list(APPEND _without --ignore=tests/python/test_torch.py)
endif()
fovea_script(python COMMAND ${_python} -m pytest -q tests/python ${_without})
fovea_script(rust COMMAND bash tests/rust.sh ${CMAKE_BINARY_DIR})
fovea_script(julia COMMAND bash tests/julia.sh)
fovea_script(smollm COMMAND ${_python} -m pytest -q tests/python/test_smollm.py TIMEOUT 1200)
fovea_script(distill COMMAND ${_python} -m pytest -q tests/python/test_distill.py)
