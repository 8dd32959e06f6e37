// Whom a run is about: the rows of a samplesheet, the one --input, or a phantom that is made first.

include { COHORT } from '../modules/cohort'
include { PHANTOM } from '../modules/phantom'
include { asWritten ; checkLaunch ; codeVersion ; oneSubject ; optional ; phantomSettings ; request ; subjectName ; subjectsOf ; switched } from './launch'
include { requireProfiler } from './profiling'
include { cancelOrphans } from './slurm'

workflow SUBJECTS {
    main:
    requireProfiler()
    checkLaunch()
    cancelOrphans()
    if (params.samplesheet || switched('phantom')) {
        COHORT(optional(asWritten('samplesheet')), request(), codeVersion())
        subjects = COHORT.out.cohort.flatMap { cohort -> subjectsOf(cohort) }
    }
    else {
        subjects = channel.of(oneSubject())
    }
    if (switched('phantom')) {
        phantom = [id: subjectName()]
        PHANTOM(COHORT.out.cohort.map { _cohort -> phantom }, phantomSettings(), codeVersion())
        subjects = PHANTOM.out.subject
    }

    emit:
    subjects
}
