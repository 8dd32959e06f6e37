// What -profile profile_gpu needs, looked at before the run: a task would say it too late.

def requireProfiler() {
    def profiles = workflow.profile.tokenize(',')
    if (!profiles.contains('profile_gpu')) {
        return
    }
    if (workflow.containerEngine) {
        log.warn('-profile profile_gpu: nsys must be in the container image; the one of the Dockerfile has none.')
        return
    }
    def there = System.getenv('PATH').tokenize(':').any { folder -> file("${folder}/nsys").exists() }
    if (!there && !profiles.contains('slurm')) {
        error('-profile profile_gpu needs the nsys command of Nsight Systems, which is not on the PATH; install it, or leave the profile out.')
    }
    if (!there) {
        log.warn('-profile profile_gpu: nsys is not on the PATH here; the nodes with GPUs must have it.')
    }
}
