{{- define "stowplan.config" -}}
{{- if .Values.config }}{{ .Values.config }}{{ else -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: {{ if eq .Values.mode "scheduler" }}stowplan{{ else }}default-scheduler{{ end }}
{{ end }}
{{- end }}

{{- /* What the plugins that the configuration names need besides the default ones, as JSON. */}}
{{- define "stowplan.plugins" -}}
{{- $found := list }}{{- $config := include "stowplan.config" . }}
{{- range $plugin, $needed := (.Files.Get "files/permissions.yaml" | fromYaml).plugins }}
{{- if regexMatch (printf "name[\"']?\\s*:\\s*[\"']?%s\\b" $plugin) $config }}
{{- $found = append $found $needed }}
{{- end }}
{{- end }}
{{- $found | toJson }}
{{- end }}

{{- /* Rules as JSON: of the values, or of the default plugins and others that the configuration names. */}}
{{- define "stowplan.rules" -}}
{{- $root := index . 0 }}{{- $account := index . 1 }}
{{- if $root.Values.rules }}{{ $root.Values.rules | toJson }}{{ else }}
{{- $rules := get ($root.Files.Get "files/permissions.yaml" | fromYaml) $account }}
{{- range include "stowplan.plugins" $root | fromJsonArray }}
{{- $rules = concat $rules (get . $account) }}
{{- end }}
{{- $rules | toJson }}
{{- end }}
{{- end }}
