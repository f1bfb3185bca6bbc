@echo off
rem Trains with small, frequent updates and mixed precision: first results in seconds. More flags may follow.
setlocal EnableExtensions DisableDelayedExpansion
cd /d "%~dp0" || goto no_folder
if not exist ".venv\Scripts\python.exe" goto no_venv
rem How fast these settings are here, by turns with those of --preset fast; about 15 seconds.
".venv\Scripts\python.exe" profile_performance.py --ratio fast --preset guide %*
set "CODE=%ERRORLEVEL%"
if not "%CODE%"=="0" goto failed
".venv\Scripts\python.exe" train.py --batch_size 128 --update_frequency 5 --epochs_per_update 4 --use_amp %*
set "CODE=%ERRORLEVEL%"
if not "%CODE%"=="0" goto failed
exit /b 0

:no_folder
echo The folder of train_fast.bat cannot be entered. Copy it to a local drive and try again.
set "CODE=1"
goto failed

:no_venv
echo movelist is not set up here yet: run setup.bat first.
set "CODE=1"
goto failed

:failed
rem A double-clicked window would close before the message was read.
if not defined CI pause
exit /b %CODE%
