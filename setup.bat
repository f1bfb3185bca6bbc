@echo off
rem Sets movelist up on Windows: makes .venv beside this file and installs into it. Double-click it, or type
rem   setup.bat        for PyTorch as pip brings it, which on Windows means without CUDA
rem   setup.bat URL    for PyTorch from the URL that https://pytorch.org/get-started/locally/ shows for your card
rem Running it again is harmless and mends what was interrupted.
rem How it is written: no parenthesised blocks, no delayed expansion, every path in quotes, so that the folder's name
rem may have spaces, brackets, exclamation marks or Chinese in it; ASCII, CRLF, and each failure jumps to a label.
setlocal EnableExtensions DisableDelayedExpansion
cd /d "%~dp0" || goto no_folder
set "PIP_DISABLE_PIP_VERSION_CHECK=1"
set "VENV_PYTHON=.venv\Scripts\python.exe"
set "FITS=sys.exit(sys.version_info < (3, 11) or sys.maxsize < 2 ** 32)"
if not "%~1"=="" set "TORCH_INDEX=%~1"

rem 1. Find Python and make .venv, unless a usable one is there.
"%VENV_PYTHON%" -c "import sys, pip; %FITS%" >nul 2>nul && goto install
set "PYTHON=py -3"
%PYTHON% -c "import sys, ensurepip; %FITS%" >nul 2>nul && goto make_venv
set "PYTHON=python"
%PYTHON% -c "import sys, ensurepip; %FITS%" >nul 2>nul && goto make_venv
goto no_python

:make_venv
%PYTHON% -m venv --clear .venv || goto no_venv

rem 2. Install what the Makefile installs.
:install
echo Installing into .venv; the first time takes minutes.
"%VENV_PYTHON%" -m pip install --upgrade pip -c constraints.txt || goto no_install
if not defined TORCH_INDEX goto install_movelist
"%VENV_PYTHON%" -m pip install --upgrade --no-deps --index-url "%TORCH_INDEX%" torch -c constraints.txt || goto no_install
:install_movelist
"%VENV_PYTHON%" -m pip install -e ".[games,onnx]" --group dev -c constraints.txt --build-constraint constraints.txt || goto no_install

rem 3. Python 3.11 reads .pth files in the system's code page, pip wrote this folder's name in UTF-8: in a folder with
rem    a Chinese name Python would not even start (github.com/python/cpython/issues/77102). A relative path is ASCII.
>".venv\Lib\site-packages\_movelist.pth" echo ..\..\..\src
"%VENV_PYTHON%" -c "import torch, pyspiel, movelist" || goto no_import

rem 4. Say what next.
where nvidia-smi >nul 2>nul || goto done
"%VENV_PYTHON%" -c "import sys, torch; sys.exit(torch.version.cuda is None)" && goto done
echo NVIDIA card found, but pip's PyTorch for Windows is CPU only: choose your CUDA on https://pytorch.org/get-started/locally/ , copy the URL it shows, and run: setup.bat URL
:done
echo movelist is set up. To train, run train_fast.bat, or: .venv\Scripts\python.exe train.py --help
if not defined CI pause
exit /b 0

:no_folder
echo The folder of setup.bat cannot be entered. Copy it to a local drive and try again.
goto failed
:no_python
echo movelist needs a 64-bit Python 3.11 or newer, and neither "py -3" nor "python" is one. Get it from https://www.python.org/downloads/ , then run setup.bat again.
goto failed
:no_venv
echo The virtual environment could not be made. Close programs that use the folder .venv, then run setup.bat again.
goto failed
:no_install
echo The install failed; pip says why above. Often it is the network, or a Python that is too new for PyTorch. Then run setup.bat again.
goto failed
:no_import
echo Installed, but it does not start; Python says why above. If a DLL is missing, install the Microsoft Visual C++ Redistributable, then run setup.bat again.
goto failed

:failed
rem A double-clicked window would close before the message was read.
if not defined CI pause
exit /b 1
