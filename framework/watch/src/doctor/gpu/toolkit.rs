//! Checks that NVRTC and cuBLAS are there and fit the driver.

use super::super::Check;
use super::libraries::ToolkitFacts;

/// Judges the toolkit; `driver` is the CUDA version of the driver.
pub(super) fn judge(found: &Result<ToolkitFacts, String>, driver: i32) -> Check {
    let id = "toolkit";
    let why = "kernels in CUDA C are compiled by NVRTC; Tensorpost itself needs neither it nor cuBLAS";
    let major = driver / 1000;
    let packages = format!(
        "pip install nvidia-cuda-nvrtc-cu{major} nvidia-cublas-cu{major}, or apt install cuda-nvrtc-{major}-0 libcublas-{major}-0; \
         LD_LIBRARY_PATH names their folder"
    );
    let needs = |check: Check| check.needs(format!("NVRTC and cuBLAS of CUDA {major}"), why);
    let facts = match found {
        Ok(facts) => facts,
        Err(why) => return needs(Check::limited(id, format!("loading them fails: {why}"))).fix(packages),
    };
    let text = |name: &str, version: &Result<(i32, i32), String>| match version {
        Ok((major, minor)) => format!("{name} {major}.{minor}"),
        Err(why) => format!("no {name}: {why}"),
    };
    let seen = format!("{}, {}", text("NVRTC", &facts.nvrtc), text("cuBLAS", &facts.cublas));
    let (Ok(nvrtc), Ok(cublas)) = (&facts.nvrtc, &facts.cublas) else {
        return needs(Check::limited(id, seen)).fix(packages);
    };
    if nvrtc.0 > major || cublas.0 > major {
        return needs(Check::limited(id, format!("{seen}, and the driver is of CUDA {major}"))).fix(format!(
            "install a driver of CUDA {} or newer, or {packages}; CUDARC_CUDA_VERSION={major}000 when building",
            nvrtc.0.max(cublas.0)
        ));
    }
    Check::ok(id, seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    #[test]
    fn a_toolkit_has_to_be_there_and_no_newer_than_the_driver() {
        let of = |nvrtc, cublas| Ok(ToolkitFacts { nvrtc, cublas });
        assert_eq!(judge(&of(Ok((13, 0)), Ok((13, 1))), 13000).status, Status::Ok);
        assert_eq!(judge(&of(Ok((12, 8)), Ok((12, 8))), 13000).status, Status::Ok);
        let check = judge(&of(Ok((13, 0)), Ok((13, 0))), 12080);
        assert!(check.status == Status::Limited && check.fix.contains("driver of CUDA 13"), "{check:?}");
        assert!(check.fix.contains("CUDARC_CUDA_VERSION=12000"), "{check:?}");
        let check = judge(&of(Err("none of libnvrtc.so was found".to_owned()), Ok((13, 0))), 13000);
        assert!(check.status == Status::Limited && check.fix.contains("nvidia-cuda-nvrtc-cu13"), "{check:?}");
        assert!(judge(&Err("SIGSEGV".to_owned()), 13000).found.contains("SIGSEGV"));
    }
}
