@echo off
rem Trains with the fastest settings that were measured on this kind of machine, and says which. More flags may follow;
rem --preset guide trains with small, frequent updates instead.
setlocal EnableExtensions DisableDelayedExpansion
set "SELF=%~f0"
cd /d "%~dp0" || goto no_folder
if not exist ".venv\Scripts\python.exe" goto no_venv
".venv\Scripts\python.exe" train.py --preset fast %*
set "CODE=%ERRORLEVEL%"
if not "%CODE%"=="0" goto failed
rem A double-clicked window would close before anything was read: its command line has this file's whole path.
set "STARTED=%CMDCMDLINE:"=%"
if not defined CI echo "%STARTED%" | find /i "%SELF%" >nul && pause
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
